"""The definition of a group's trigger, so that two triggers never share one group by mistake: each
would get the cells of a part of the shards, and nobody would see that the others are missing.

The first worker of a group records its definition, by compare-and-set, before it joins. A worker
with another one is refused, on any host, with both definitions. The record is in the datastore's
state table wherever the coordination is: every process of the group has that one, and it does not
go back with a ZooKeeper.

    definitions/<group>     {"definition", "since_us", "changed_by"}

Consumer groups of gateways keep their offsets in the same place. So a name belongs to a trigger or
to consumers, and never to both: gateways refuse consumers' writes to a defined group, and a trigger
takes no name under which consumers have saved offsets (:func:`refuse_consumers`).

A worker compares again in each new session, before it claims a shard in it.

**Changing it on purpose** (:func:`let_change`): an operator asks once the group has no workers; the
next worker records its own. Crash points:

    marked (``changed_by``)     nobody works on the group: workers wait, and name its author
    members looked at           as before; with members the mark is taken off again
    deleted                     done; the entry in the history came with it

A worker that joined before the members were looked at is seen there. One that joined after that
compares after its join, so it meets the mark, or records its own as everybody else does.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from cellfeed.bridge.coordination.contract import Coordinator, Offsets
from cellfeed.bridge.groups.control import EXPORTS, PREFIX, when
from cellfeed.bridge.groups.history import Deed, Operator, entry
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import GroupTaken, NotFound, Refused, Unavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.indexes.version import INDEX_GROUPS

declare(
    "definition.before_recorded",
    "definition.marked",
    "definition.members_looked_at",
    "definition.deleted",
)

_DEFINITIONS: Final = "definitions/"

_OF_TRIGGERS: Final = (
    (PREFIX, "/"),
    ("starts/", "/"),
    ("trigger-history/", "/"),
    ("foothold/", "/shards/"),
    ("parked/", "/"),
)
"""The text before and behind the group's name in entries that a trigger of any version leaves, and
``offsets set``."""

_FIXED: Final = re.compile(rf"{EXPORTS}.*|{re.escape(INDEX_GROUPS)}.+\.v\d+|__gateways", re.DOTALL)
"""Names of groups that no person gives."""

_TRIES_MAX: Final = 50
"""Compare-and-set tries on one record: others write it only while the first workers start."""


class Definition(msgspec.Struct, frozen=True):
    """``columns``: whose cells it gets, sorted. ``application``: module and function. ``entry``:
    the name in the configuration, empty for a program that was started without one."""

    columns: list[str]
    application: str
    entry: str = ""

    def __str__(self) -> str:
        under = f" of entry {self.entry!r}" if self.entry else ""
        return f"{self.application} on column {', '.join(self.columns)}{under}"

    def agrees(self, other: Definition) -> bool:
        """Whether both are one trigger. A program without an entry helps out those with one."""
        return (self.columns, self.application) == (other.columns, other.application) and (
            self.entry == other.entry or not (self.entry and other.entry)
        )


class _Recorded(msgspec.Struct, frozen=True):
    definition: Definition
    since_us: int
    changed_by: str = ""


def check_definition(state: StateTable, group: str, own: Definition) -> None:
    """Records the definition where the group has none. Raises GroupTaken when it has another one,
    Unavailable while somebody changes it."""
    key = _key(group)
    for _ in range(_TRIES_MAX):
        found = state.get(key)
        if found is None:
            new = _Recorded(own, state.now_us())
            failpoint("definition.before_recorded")
            if state.commit({key: msgspec.json.encode(new)}, expect={key: None}) is not None:
                return
            continue
        recorded = _decode(found.value)
        if recorded.changed_by:
            raise Unavailable(
                f"the definition of group {group!r} is being changed by {recorded.changed_by}; if"
                f" that has ended: cellfeed triggers redefine {group} --reason …"
            )
        if not own.agrees(recorded.definition):
            raise GroupTaken(
                f"group {group!r} belongs to another trigger: {recorded.definition}, since"
                f" {when(recorded.since_us)}. This one is {own}. Both would share the cells, and"
                " each miss some: give this one a group of its own (name: in the configuration, or"
                " group= in code). If it replaces that one, end its workers and say so: cellfeed"
                f" triggers redefine {group} --reason …"
            )
        if recorded.definition.entry or not own.entry:
            return
        # From now on another entry is refused.
        named = msgspec.structs.replace(recorded, definition=own)
        if state.commit({key: msgspec.json.encode(named)}, expect={key: found.version}) is not None:
            return
    raise Unavailable(f"the definition of group {group!r} could not be recorded: others are faster")


def refuse_consumers(state: StateTable, offsets: Offsets, group: str) -> None:
    """To be called before the first definition is recorded: raises GroupTaken when the group has
    offsets that no trigger has saved. Raises Unavailable."""
    if state.get(_key(group)) is not None:
        return
    name = quote(group, safe="")
    if any(state.list(f"{before}{name}{behind}") for before, behind in _OF_TRIGGERS):
        return
    if offsets.fetch_offsets(group):
        raise GroupTaken(
            f"group {group!r} has offsets that no trigger has saved: it is a consumer group of the"
            " gateways. Give the trigger another name (name: in the configuration, or group= in"
            " code). If the offsets were set for this trigger, say so: cellfeed offsets set"
            f" {group} SHARD:LOCATION,… --reason …"
        )


def belongs_to_cellfeed(group: str) -> bool:
    """Whether the name is that of an export, an index version or the gateways themselves."""
    return _FIXED.fullmatch(group) is not None


def defined_groups(state: StateTable) -> frozenset[str]:
    """Groups that are triggers."""
    entries = state.list(_DEFINITIONS)
    return frozenset(unquote(each.key.removeprefix(_DEFINITIONS)) for each in entries)


def definition_of(state: StateTable, group: str) -> Definition | None:
    """The recorded definition; None where there is none."""
    found = state.get(_key(group))
    return _decode(found.value).definition if found else None


def let_change(
    state: StateTable, coordinator: Coordinator, group: str, operator: Operator
) -> Definition:
    """Has the next worker record its own definition; returns the one that ends. Raises Refused
    while the group has workers, NotFound where nothing is recorded, Unavailable."""
    key = _key(group)
    found = state.get(key)
    if found is None:
        raise NotFound(f"no definition of group {group!r} is recorded: any trigger may begin it")
    before = _decode(found.value)
    marked = msgspec.json.encode(msgspec.structs.replace(before, changed_by=operator.name))
    version = state.commit({key: marked}, expect={key: found.version})
    if version is None:
        raise Refused(f"the definition of group {group!r} changed just now: look, and try again")
    failpoint("definition.marked")
    if members := coordinator.members(group):
        unmarked = msgspec.json.encode(msgspec.structs.replace(before, changed_by=""))
        state.commit({key: unmarked}, expect={key: version})
        raise Refused(f"group {group!r} is at work ({', '.join(members)}): end its workers first")
    failpoint("definition.members_looked_at")
    deed = entry(
        Deed(
            group=group,
            action="redefined",
            by=operator.name,
            because=operator.because,
            at_us=state.now_us(),
            to=f"it was {before.definition}",
        )
    )
    if state.commit({key: None, **deed}, expect={key: version}) is None:
        raise Refused(f"the definition of group {group!r} changed just now: look, and try again")
    failpoint("definition.deleted")
    return before.definition


def definition_key(group: str) -> str:
    """Of the entry in the state table."""
    return _key(group)


def _key(group: str) -> str:
    return f"{_DEFINITIONS}{quote(group, safe='')}"


def _decode(value: bytes) -> _Recorded:
    return msgspec.json.decode(value, type=_Recorded)
