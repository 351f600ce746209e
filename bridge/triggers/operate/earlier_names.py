"""Groups that an earlier version named after the function, ``triggers.<function>``. They get their
trigger's name by themselves, when its first worker starts."""

from __future__ import annotations

import logging
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.groups.start import EARLIEST
from cellfeed.bridge.triggers.operate.rename import LEASE_S, finish_rename, rename
from cellfeed.bridge.triggers.operate.renamed import Renamed, has_begun, last_report, renamed
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import GroupTaken, Refused, Unavailable

_log = logging.getLogger("cellfeed.triggers")

_BY_ITSELF: Final = Operator("cellfeed", "groups have the names that people wrote")


def follow_earlier(
    trigger: Trigger, datastore: Datastore, coordinator: Coordinator, lease_s: float = LEASE_S
) -> None:
    """Lets a group that an earlier version named after the function continue under its new name;
    does nothing where there is none. Raises GroupTaken when nobody can know whose it was,
    Unavailable while its workers still run."""
    state, old, new = datastore.state, trigger.earlier_group, trigger.group
    if not old or old == new:
        return
    note = renamed(state, old)
    if note is not None and note.to == new:
        finish_rename(datastore, coordinator, old)
        return
    if has_begun(state, new):
        return
    if note is not None:
        _warn_of_shared(trigger, note)
        return
    if not has_begun(state, old):
        return
    check_earlier(state, trigger)
    try:
        rename(datastore, coordinator, old, new, _BY_ITSELF, lease_s=lease_s)
    except Refused as error:
        raise Unavailable(f"{error}; {new!r} waits for that") from error
    _log.info("group %s is %s now: its offsets and parked cells are there", old, new)


def check_earlier(state: StateTable, trigger: Trigger) -> None:
    """Raises GroupTaken when the group of the earlier version was last another trigger's, or is
    another one's now: two may have shared it, and neither got all of its cells. One that begins at
    the earliest cell loses nothing by that."""
    old, new = trigger.earlier_group, trigger.group
    if not old or old == new or has_begun(state, new):
        return
    note = renamed(state, old)
    if note is not None and note.to != new and trigger.start != EARLIEST:
        raise GroupTaken(
            f"group {old!r} of an earlier version is {note.to!r} now. If {new!r} shared it, its"
            f" start ({trigger.start!r}) leaves out cells that it has not run. Say where it begins:"
            f" cellfeed offsets set {new} earliest|latest|SHARD:LOCATION,… --new --reason …"
        )
    if note is not None or not has_begun(state, old):
        return
    about = last_report(state, old)
    own = ", ".join((trigger.column, *trigger.more_columns)), trigger.function_name
    if about is not None and (about.column, about.function) != own:
        raise GroupTaken(
            f"group {old!r} of an earlier version was last {about.function} on column"
            f" {about.column}; {new!r} is {own[1]} on column {own[0]}. If they shared it, each"
            " missed some cells. Say whose its offsets are: cellfeed triggers rename"
            f" {old} NAME --reason … ({new}, or the group of the other one; a shard without offsets"
            " begins at its start)"
        )


def _warn_of_shared(trigger: Trigger, note: Renamed) -> None:
    _log.warning(
        "group %s of an earlier version is %s now; %s begins at its start. If both shared that"
        " group, each missed some cells: cellfeed triggers reset GROUP --to earliest",
        trigger.earlier_group,
        note.to,
        trigger.group,
    )
