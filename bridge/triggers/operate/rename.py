"""Giving a trigger's group another name: its offsets, parked cells, settled start, tries on record,
pause and history go along. So does a trigger that earlier versions named after its function
(``triggers.<function>``), by itself, when its first worker starts (:func:`follow_earlier`).

**Fenced first.** The process that renames joins the old group as a member that gets no shards, and
claims all of them; with a worker there nothing is renamed. **Decided in one commit** of the state
table: every entry under the new name, none under the old one, each only if nobody changed it since
it was read. It leaves two notes: ``renamed/<old>``, and a pause of the old group. So a worker of an
earlier version that starts late waits instead of beginning again.

With coordination in the store the offsets are among the entries. With ZooKeeper the entries have
kept offsets: they say where the next owner of each shard continues, and it saves that under the new
name. Crash points:

    before the commit       nothing was renamed; the claims are free once the session has run out
    after it                all of it is the new group's; offsets of the old name may be left in
                            ZooKeeper, where nobody uses them
    run again               finds the note; takes away the rest
    two at once             claims are one's alone, and the commit of the other finds other versions
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import msgspec

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.groups.control import OPERATOR, Pause, group_prefix, notify_workers
from cellfeed.bridge.groups.definition import (
    belongs_to_cellfeed,
    definition_key,
    refuse_consumers,
)
from cellfeed.bridge.groups.history import Deed, Operator, entry
from cellfeed.bridge.groups.membership import LeaseKeeper, Membership
from cellfeed.bridge.groups.progress_records import About
from cellfeed.bridge.groups.start import EARLIEST, carried_start
from cellfeed.bridge.triggers.offsets.kept_offsets import (
    KeptOffsets,
    carried_offsets,
    kept_prefix,
    lineage_key,
    lost_offsets,
    needs_kept_offsets,
)
from cellfeed.bridge.triggers.parked.cells import ParkedCell
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import (
    CellfeedError,
    GroupTaken,
    InvalidRequest,
    NotFound,
    Refused,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint

declare(
    "rename.after_claims", "rename.before_decision", "rename.after_decision", "rename.after_end"
)

_log = logging.getLogger("cellfeed.triggers")

LEASE_S: Final = 10.0
"""How long the old group's shards wait for a rename that was killed."""

RENAMED: Final = "renamed/"
"""Begins the notes: old name to :class:`Renamed`."""

_BEGUN: Final = (
    ("starts/", "/"),
    ("offsets/", "/"),
    ("foothold/", "/shards/"),
    ("parked/", "/"),
    ("skipped/", "/"),
)
"""The text before and behind the group's name in entries that only a group has which has worked."""

_MOVED: Final = ("starts/", "offsets/", "tries/", "parked/", "skipped/", "trigger-history/")
"""Begin the entries that go along, key by key. Kept offsets are made again, see the module."""

_BY_ITSELF: Final = Operator("cellfeed", "groups have the names that people wrote")


class Renamed(msgspec.Struct, frozen=True):
    """Where a group went. ``column`` and ``function``: as its workers last said. ``ended``: nothing
    of the old name is left elsewhere."""

    to: str
    at_us: int
    column: str = ""
    function: str = ""
    ended: bool = False


def has_begun(state: StateTable, group: str) -> bool:
    """Whether the datastore knows of work of the group."""
    name = quote(group, safe="")
    return any(state.list(f"{before}{name}{behind}") for before, behind in _BEGUN)


def renamed_groups(state: StateTable) -> list[str]:
    """Names that are no longer in use, percent-encoded."""
    return [each.key.removeprefix(RENAMED) for each in state.list(RENAMED)]


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
        _end(datastore, coordinator, old)
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
    about = _about(state, old)
    own = ", ".join((trigger.column, *trigger.more_columns)), trigger.function_name
    if about is not None and (about.column, about.function) != own:
        raise GroupTaken(
            f"group {old!r} of an earlier version was last {about.function} on column"
            f" {about.column}; {new!r} is {own[1]} on column {own[0]}. If they shared it, each"
            " missed some cells. Say whose its offsets are: cellfeed triggers rename"
            f" {old} NAME --reason … ({new}, or the group of the other one; a shard without offsets"
            " begins at its start)"
        )


def rename(
    datastore: Datastore,
    coordinator: Coordinator,
    old: str,
    new: str,
    operator: Operator,
    *,
    lease_s: float = LEASE_S,
) -> None:
    """Gives a group without workers another name. Raises Refused, with nothing changed, while it
    has workers, when its offsets are lost, or when the new group has worked already; GroupTaken
    when that is a consumer group; InvalidRequest, NotFound, Unavailable."""
    state = datastore.state
    note = renamed(state, old)
    if note is not None and note.to == new:
        _end(datastore, coordinator, old)
        return
    if not has_begun(state, old):
        gone = f": it is {note.to!r} now" if note is not None else ""
        raise NotFound(f"no trigger {old!r} has ever run here{gone}")
    if not new or belongs_to_cellfeed(new):
        raise InvalidRequest(f"TO {new!r}: no name for a trigger's group")
    refuse_consumers(state, coordinator, new)
    if has_begun(state, new):
        raise Refused(f"group {new!r} has offsets of its own: nothing is renamed to it")
    _refuse_at_work(coordinator, old)
    member = f"{OPERATOR}{operator.name} {os.getpid()}-{secrets.token_hex(4)}"
    membership = Membership(coordinator, old, member, lease_s)
    keeper = LeaseKeeper([membership], lease_s)
    claims: dict[int, Claim] = {}
    try:
        _refuse_at_work(coordinator, old, but=member)
        claims = coordinator.claim(membership.session, datastore.name, range(datastore.shards))
        if len(claims) < datastore.shards:
            raise Refused(f"group {old!r} is at work: not all of its shards are free; try again")
        failpoint("rename.after_claims")
        decision = _Decision(state, old, new)
        decision.move_entries()
        decision.move_position(datastore, coordinator, claims)
        decision.note(operator)
        failpoint("rename.before_decision")
        if state.commit(decision.write, expect=decision.expect) is None:
            raise Refused(f"group {old!r} or {new!r} changed meanwhile: nothing is renamed")
        failpoint("rename.after_decision")
        _end(datastore, coordinator, old)
    finally:
        with suppress(CellfeedError):
            coordinator.release(list(claims.values()))
        with suppress(CellfeedError):
            membership.leave()
        keeper.close()
        notify_workers(state, new)


def renamed(state: StateTable, old: str) -> Renamed | None:
    """Where the group went; None where it has its name still."""
    found = state.get(_note_key(old))
    return msgspec.json.decode(found.value, type=Renamed) if found else None


class _Decision:
    """The entries that the one commit writes, and the versions that it expects."""

    def __init__(self, state: StateTable, old: str, new: str) -> None:
        self._state = state
        self._old, self._new = old, new
        self.write: dict[str, bytes | None] = {}
        self.expect: dict[str, int | None] = {}

    def move_entries(self) -> None:
        """Everything that is one entry under each name."""
        old, new = quote(self._old, safe=""), quote(self._new, safe="")
        for prefix in _MOVED:
            for found in self._state.list(f"{prefix}{old}/"):
                rest = found.key.removeprefix(f"{prefix}{old}/")
                self._move(found, f"{prefix}{new}/{rest}", _of_group(found, prefix, self._new))
        for key, to in (
            (f"stopped/{old}", f"stopped/{new}"),
            (f"{group_prefix(self._old)}paused", f"{group_prefix(self._new)}paused"),
        ):
            if (each := self._state.get(key)) is not None:
                self._move(each, to, each.value)
        if (definition := self._state.get(definition_key(self._old))) is not None:
            self._take_away(definition)

    def move_position(
        self, datastore: Datastore, coordinator: Coordinator, claims: Mapping[int, Claim]
    ) -> None:
        """Where the new group begins and continues, as far as that is no entry to be moved. Raises
        Refused when nobody knows."""
        state, topic = self._state, datastore.name
        if lost := lost_offsets(state, coordinator, self._old, topic):
            raise Refused(
                f"group {self._old!r} is not renamed: {lost}; say first where it resumes: cellfeed"
                f" offsets set {self._old} kept|earliest|latest|SHARD:LOCATION,…"
            )
        starts, entry_of_start = carried_start(datastore, self._old, self._new)
        self._add(entry_of_start)
        if needs_kept_offsets(coordinator):
            found = coordinator.fetch_offsets(self._old, [(topic, shard) for shard in claims])
            saved = {shard: each.offset for (_, shard), each in found.items()}
            taken = KeptOffsets(state, self._old, topic).take(claims, saved)
            if len(taken) < len(claims):
                raise Refused(f"group {self._old!r} is at work: end its workers first")
            begun = {
                shard: each.start
                for shard, each in taken.items()
                if shard in saved or each.kept.location is not None
            }
            self._add(carried_offsets(self._new, topic, begun, starts))
            # A process that looked at the group before has remembered its lineage.
            key = lineage_key(self._new)
            remembered = state.get(key)
            self.write[key] = coordinator.lineage(self._new).encode()
            self.expect[key] = remembered.version if remembered is not None else None
        for each in state.list(kept_prefix(self._old)):
            self._take_away(each)

    def note(self, operator: Operator) -> None:
        """Tells where the group went: to people, and to workers of an earlier version."""
        now_us, about = self._state.now_us(), _about(self._state, self._old)
        names = (about.column, about.function) if about is not None else ("", "")
        note = Renamed(self._new, now_us, *names)
        because = f"it is group {self._new!r} now; end this worker, which is of an earlier version"
        deed = Deed(
            group=self._new,
            action="renamed",
            by=operator.name,
            because=operator.because,
            at_us=now_us,
            to=f"{self._new} (it was {self._old})",
        )
        for each in self._state.list(group_prefix(self._old)):
            self.write.setdefault(each.key, None)
        self._add({_note_key(self._old): msgspec.json.encode(note), **entry(deed)})
        paused = msgspec.json.encode(Pause("cellfeed", because, now_us))
        self.write[f"{group_prefix(self._old)}paused"] = paused

    def _move(self, found: StateEntry, key: str, value: bytes) -> None:
        self._take_away(found)
        self._add({key: value})

    def _take_away(self, found: StateEntry) -> None:
        self.write[found.key] = None
        self.expect[found.key] = found.version

    def _add(self, entries: Mapping[str, bytes | None]) -> None:
        """Entries that are not there yet."""
        for key, value in entries.items():
            self.write[key] = value
            self.expect.setdefault(key, None)


def _end(datastore: Datastore, coordinator: Coordinator, old: str) -> None:
    """Takes away offsets of the old name that are kept elsewhere. Raises Unavailable."""
    state = datastore.state
    found = state.get(_note_key(old))
    note = msgspec.json.decode(found.value, type=Renamed) if found is not None else None
    if found is None or note is None or note.ended:
        return
    if not coordinator.keeps_in_store:
        coordinator.delete_offsets(old)
    ended = msgspec.json.encode(msgspec.structs.replace(note, ended=True))
    state.commit({found.key: ended}, expect={found.key: found.version})
    failpoint("rename.after_end")


def _of_group(found: StateEntry, prefix: str, group: str) -> bytes:
    """The entry's value; those that name their group name another one."""
    if prefix in ("parked/", "skipped/"):
        cell = msgspec.json.decode(found.value, type=ParkedCell)
        return msgspec.json.encode(msgspec.structs.replace(cell, group=group))
    if prefix == "trigger-history/":
        deed = msgspec.msgpack.decode(found.value, type=Deed)
        return msgspec.msgpack.encode(msgspec.structs.replace(deed, group=group))
    return found.value


def _refuse_at_work(coordinator: Coordinator, group: str, *, but: str = "") -> None:
    if others := [each for each in coordinator.members(group) if each != but]:
        raise Refused(f"group {group!r} is at work ({', '.join(others)}): end its workers first")


def _warn_of_shared(trigger: Trigger, note: Renamed) -> None:
    _log.warning(
        "group %s of an earlier version is %s now; %s begins at its start. If both shared that"
        " group, each missed some cells: cellfeed triggers reset GROUP --to earliest",
        trigger.earlier_group,
        note.to,
        trigger.group,
    )


def _about(state: StateTable, group: str) -> About | None:
    found = state.get(f"{group_prefix(group)}about")
    return msgspec.json.decode(found.value, type=About) if found else None


def _note_key(old: str) -> str:
    return f"{RENAMED}{quote(old, safe='')}"
