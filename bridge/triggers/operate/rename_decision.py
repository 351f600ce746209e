"""The one commit that gives a group its new name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.groups.control import Pause, group_prefix
from cellfeed.bridge.groups.definition import definition_key
from cellfeed.bridge.groups.history import Deed, Operator, entry
from cellfeed.bridge.groups.start import carried_start
from cellfeed.bridge.triggers.offsets.kept_offsets import (
    KeptOffsets,
    carried_offsets,
    kept_prefix,
    needs_kept_offsets,
)
from cellfeed.bridge.triggers.offsets.lineage import lineage_key, lost_offsets
from cellfeed.bridge.triggers.operate.renamed import Renamed, last_report, note_key
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import Refused

_MOVED: Final = ("starts/", "offsets/", "tries/", "parked/", "skipped/", "trigger-history/")
"""Begin the entries that go along, key by key. Kept offsets are made again, see the module."""


class Decision:
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
        now_us, about = self._state.now_us(), last_report(self._state, self._old)
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
        self._add({note_key(self._old): msgspec.json.encode(note), **entry(deed)})
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


def _of_group(found: StateEntry, prefix: str, group: str) -> bytes:
    """The entry's value; those that name their group name another one."""
    if prefix in ("parked/", "skipped/"):
        cell = msgspec.json.decode(found.value, type=ParkedCell)
        return msgspec.json.encode(msgspec.structs.replace(cell, group=group))
    if prefix == "trigger-history/":
        deed = msgspec.msgpack.decode(found.value, type=Deed)
        return msgspec.msgpack.encode(msgspec.structs.replace(deed, group=group))
    return found.value
