"""Cells that a trigger could not run: kept on a queue of their own, with the error, until they run or somebody skips them with a reason.

Parking a cell and moving the offset past it is one commit of the coordinator's store, so a cell is either still to be run, or parked: never both, never neither
(I14). Keys: ``parked/<group>/<topic>/<partition>/<added_id>``; skipped ones move to ``skipped/…``; a stopped trigger has ``stopped/<group>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from store.engines.contract import StateEntry, StateTable
from store.errors import InvalidRequest, NotFound

_ERROR_TEXT_MAX: Final = 4_000
"""Characters of an error (its traceback's end) that are kept with a parked cell."""


class ParkedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A parked cell. Times are microseconds since 1970 UTC; ``retry_asked`` is set by hand to have it tried at once."""

    group: str
    topic: str
    partition: int
    added_id: int
    row_key: str
    column_name: str
    ref_key: int
    error: str
    attempts: int
    parked_at_us: int
    last_tried_at_us: int
    retry_asked: bool = False
    skipped_because: str = ""

    @property
    def cell_id(self) -> str:
        """How people name it: ``<partition>/<added_id>``."""
        return f"{self.partition}/{self.added_id}"


class ParkedCells:
    """The parked cells of all triggers."""

    def __init__(self, state: StateTable) -> None:
        self._state = state

    def entry(self, cell: ParkedCell) -> Mapping[str, bytes | None]:
        """The state entry that parks a cell; to be committed together with the offset."""
        kept = msgspec.structs.replace(cell, error=cell.error[-_ERROR_TEXT_MAX:])
        return {_key("parked", cell.group, cell.topic, cell.partition, cell.added_id): msgspec.json.encode(kept)}

    def all(self, group: str | None = None) -> list[ParkedCell]:
        """By group, partition and added_id."""
        entries = self._state.list(f"parked/{quote(group, safe='')}/" if group else "parked/")
        return [_decode(entry) for entry in entries]

    def count(self, group: str) -> int:
        return len(self._state.list(f"parked/{quote(group, safe='')}/"))

    def of_partition(self, group: str, topic: str, partition: int) -> dict[ParkedCell, int]:
        """The parked cells of one partition, with the version of each entry."""
        prefix = f"parked/{quote(group, safe='')}/{quote(topic, safe='')}/{partition}/"
        return {_decode(entry): entry.version for entry in self._state.list(prefix)}

    def find(self, group: str, cell_id: str) -> ParkedCell:
        """Raises NotFound."""
        for cell in self.all(group):
            if cell.cell_id == cell_id:
                return cell
        raise NotFound(f"group {group!r} has no parked cell {cell_id}")

    def resolved(self, cell: ParkedCell, version: int) -> bool:
        """Takes a cell that has run off the queue; False when somebody skipped it meanwhile."""
        key = _key("parked", cell.group, cell.topic, cell.partition, cell.added_id)
        return self._state.commit({key: None}, expect={key: version}) is not None

    def failed_again(self, cell: ParkedCell, version: int, error: str) -> None:
        """Notes another failed try."""
        key = _key("parked", cell.group, cell.topic, cell.partition, cell.added_id)
        again = msgspec.structs.replace(
            cell, error=error[-_ERROR_TEXT_MAX:], attempts=cell.attempts + 1, last_tried_at_us=self._state.now_us(), retry_asked=False
        )
        self._state.commit({key: msgspec.json.encode(again)}, expect={key: version})

    def ask_retry(self, group: str, cell_id: str | None = None) -> int:
        """Has a parked cell, or all of the group, tried again as soon as the partition's owner looks. How many."""
        cells = [self.find(group, cell_id)] if cell_id else self.all(group)
        for cell in cells:
            key = _key("parked", cell.group, cell.topic, cell.partition, cell.added_id)
            entry = self._state.get(key)
            if entry is not None:
                asked = msgspec.structs.replace(_decode(entry), retry_asked=True)
                self._state.commit({key: msgspec.json.encode(asked)}, expect={key: entry.version})
        return len(cells)

    def skip(self, group: str, cell_id: str, reason: str) -> None:
        """Gives a parked cell up for good; the reason is kept. Raises InvalidRequest without one, NotFound when it is not parked."""
        if not reason.strip():
            raise InvalidRequest("a parked cell is skipped with a reason")
        cell = self.find(group, cell_id)
        key = _key("parked", cell.group, cell.topic, cell.partition, cell.added_id)
        entry = self._state.get(key)
        skipped = msgspec.json.encode(msgspec.structs.replace(cell, skipped_because=reason))
        write = {key: None, _key("skipped", cell.group, cell.topic, cell.partition, cell.added_id): skipped}
        if entry is None or self._state.commit(write, expect={key: entry.version}) is None:
            raise NotFound(f"parked cell {cell_id} of group {group!r} ran meanwhile, or is being retried; look again")

    def skipped(self, group: str | None = None) -> list[ParkedCell]:
        entries = self._state.list(f"skipped/{quote(group, safe='')}/" if group else "skipped/")
        return [_decode(entry) for entry in entries]

    # --- a trigger that stopped --------------------------------------------------------------------------------------------

    def stop(self, group: str, reason: str) -> None:
        """Stops a trigger until somebody resumes it."""
        self._state.commit({f"stopped/{quote(group, safe='')}": reason.encode()})

    def stopped_because(self, group: str) -> str | None:
        entry = self._state.get(f"stopped/{quote(group, safe='')}")
        return entry.value.decode() if entry else None

    def resume(self, group: str) -> None:
        """Lets a stopped trigger go on."""
        self._state.commit({f"stopped/{quote(group, safe='')}": None})


def _decode(entry: StateEntry) -> ParkedCell:
    return msgspec.json.decode(entry.value, type=ParkedCell)


def _key(queue: str, group: str, topic: str, partition: int, added_id: int) -> str:
    return f"{queue}/{quote(group, safe='')}/{quote(topic, safe='')}/{partition}/{added_id:020d}"
