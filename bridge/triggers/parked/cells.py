"""Cells that a trigger could not run: kept on a queue of their own, with the error, until they run
or somebody skips them with a reason.

Parking a cell and moving the offset past it is one commit of the coordinator's store. So a cell is
either still to be run, or parked: never both, never neither (I14). Keys:
``parked/<group>/<topic>/<partition>/<added_id>``; skipped ones move to ``skipped/…``; a stopped
trigger has ``stopped/<group>``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec

from cellfeed.bridge.triggers.parked.cell import ParkedCell, decode, fronts, key_of
from cellfeed.bridge.triggers.process_death.recorded_attempts import ERROR_TEXT_MAX
from cellfeed.store.cells.token import Places
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import InvalidRequest, NotFound, Unavailable

_TRIES_MAX: Final = 50
"""Compare-and-set tries on one entry: it is only ever written by its partition's owner and by
people at the command line."""


_PLACES_ALONE: Final = 8
"""Places whose entries are read one by one; for more, or for ranges, the group's are listed."""


class ParkedCells:
    """The parked cells of all triggers."""

    def __init__(self, state: StateTable) -> None:
        self._state = state

    def entry(self, cell: ParkedCell) -> Mapping[str, bytes | None]:
        """The state entry that parks a cell; to be committed together with the offset."""
        return {
            key_of("parked", cell): msgspec.json.encode(
                msgspec.structs.replace(cell, error=cell.error[-ERROR_TEXT_MAX:])
            )
        }

    def all(self, group: str | None = None, queue: str = "parked") -> list[ParkedCell]:
        """By group, partition and added_id (``queue`` ``skipped``: those that were given up)."""
        name = f"{quote(group, safe='')}/" if group else ""
        return [decode(entry) for entry in self._state.list(f"{queue}/{name}")]

    def entries_of(self, group: str) -> list[str]:
        """The keys of all that is kept of a group's cells: parked, skipped, or why it stopped."""
        name = quote(group, safe="")
        stopped = self._state.get(f"stopped/{name}")
        return [
            each.key
            for queue in ("parked", "skipped")
            for each in self._state.list(f"{queue}/{name}/")
        ] + ([stopped.key] if stopped else [])

    def count(self, group: str) -> int:
        """All of a group's, those that wait behind another one among them."""
        return len(self._state.list(f"parked/{quote(group, safe='')}/"))

    def count_failed(self, group: str) -> int:
        """Those of a group that were tried: they wait behind no other one."""
        return sum(not cell.is_behind for cell in self.all(group))

    def groups(self) -> set[str]:
        """Those that have parked or skipped cells, or are stopped."""
        keys = [
            each.key
            for queue in ("parked/", "skipped/", "stopped/")
            for each in self._state.list(queue)
        ]
        return {unquote(key.split("/")[1]) for key in keys}

    def of_partition(self, group: str, topic: str, partition: int) -> list[ParkedCell]:
        """The parked cells of one partition, by added_id."""
        prefix = f"parked/{quote(group, safe='')}/{quote(topic, safe='')}/{partition}/"
        return [decode(entry) for entry in self._state.list(prefix)]

    def within(
        self, group: str, topic: str, places: Sequence[Places], queue: str = "parked"
    ) -> list[ParkedCell]:
        """The parked cells at these places (``queue`` ``skipped``: those that were given up), by
        place."""
        prefix = f"{queue}/{quote(group, safe='')}/{quote(topic, safe='')}/"
        alone = len(places) <= _PLACES_ALONE and all(each.first == each.last for each in places)
        if alone:
            found = [self._state.get(f"{prefix}{each.shard}/{each.first:020d}") for each in places]
            return [decode(entry) for entry in found if entry is not None]
        ranges = {each.shard: each for each in places}
        cells = map(decode, self._state.list(prefix))
        return sorted(
            (
                cell
                for cell in cells
                if (each := ranges.get(cell.partition)) is not None
                and each.first <= cell.added_id <= each.last
            ),
            key=lambda cell: (cell.partition, cell.added_id),
        )

    def come_to_again(
        self, group: str, topic: str, locations: Mapping[int, int]
    ) -> dict[str, bytes | None]:
        """Entries that take cells off the queue which a group reaches again when its shards
        continue at these locations."""
        cells = [
            cell for cell in self.all(group) if cell.topic == topic and cell.partition in locations
        ]
        return {
            key_of("parked", cell): None
            for cell in cells
            if cell.added_id >= locations[cell.partition]
        }

    def find(self, group: str, cell_id: str) -> ParkedCell:
        """Raises NotFound."""
        for cell in self.all(group):
            if cell.cell_id == cell_id:
                return cell
        raise NotFound(f"group {group!r} has no parked cell {cell_id}")

    def resolved(self, cell: ParkedCell, also: Mapping[str, bytes | None] | None = None) -> bool:
        """Takes a cell that has run off the queue; False when somebody skipped it meanwhile.
        ``also`` is written with it in any case."""
        return self._change(cell, lambda _: None, also)

    def failed_again(
        self,
        cell: ParkedCell,
        error: str,
        *,
        attempts: int = 1,
        ended: int = 0,
        also: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Notes more tries that failed, ``ended`` of them with the process. ``also`` is written
        with it in any case."""

        def tried(before: ParkedCell) -> ParkedCell:
            return msgspec.structs.replace(
                before,
                error=error[-ERROR_TEXT_MAX:],
                attempts=before.attempts + attempts,
                last_tried_at_us=self._state.now_us(),
                retry_asked=False,
                ended=before.ended + ended,
                is_behind=False,
            )

        self._change(cell, tried, also)

    def _change(
        self,
        cell: ParkedCell,
        change: Callable[[ParkedCell], ParkedCell | None],
        also: Mapping[str, bytes | None] | None,
    ) -> bool:
        """Changes the entry, or takes it off the queue (None), in one commit with ``also``. False
        when it is gone: then ``also`` is written alone. Raises Unavailable."""
        key = key_of("parked", cell)
        for _ in range(_TRIES_MAX):
            entry, write = self._state.get(key), dict(also or {})
            if entry is not None:
                changed = change(decode(entry))
                write[key] = msgspec.json.encode(changed) if changed is not None else None
            expect = {key: entry.version if entry else None}
            if not write or self._state.commit(write, expect=expect) is not None:
                return entry is not None
        raise Unavailable(
            f"parked cell {cell.cell_id} of group {cell.group!r} could not be written: others are"
            " faster"
        )

    def ask_retry(self, group: str, cell_id: str | None = None) -> int:
        """Has a parked cell, or all of the group, tried again as soon as the partition's owner
        looks. How many.

        Those of a row key that is kept in order run one after the other, from the first on, as long
        as each succeeds. Raises NotFound, and InvalidRequest for one that is not the first.
        """
        cells = self.all(group)
        first = {cell.cell_id for cell in fronts(cells)}
        if cell_id is not None:
            cells = [self.find(group, cell_id)]
            if cell_id not in first:
                raise InvalidRequest(
                    f"parked cell {cell_id} of group {group!r} waits behind an earlier one of row"
                    f" key {cells[0].row_key}: retry or skip that one first"
                )
        for cell in cells:
            key = key_of("parked", cell)
            entry = self._state.get(key)
            if entry is not None and cell.cell_id in first:
                asked = msgspec.structs.replace(decode(entry), retry_asked=True)
                self._state.commit({key: msgspec.json.encode(asked)}, expect={key: entry.version})
        return len(cells)

    def skip(self, group: str, cell_id: str, reason: str) -> None:
        """Gives a parked cell up for good; the reason is kept. Raises InvalidRequest without one,
        NotFound when it is not parked."""
        if not reason.strip():
            raise InvalidRequest("a parked cell is skipped with a reason")
        cell = self.find(group, cell_id)
        key = key_of("parked", cell)
        entry = self._state.get(key)
        skipped = msgspec.json.encode(msgspec.structs.replace(cell, skipped_because=reason))
        write = {key: None, key_of("skipped", cell): skipped}
        if entry is None or self._state.commit(write, expect={key: entry.version}) is None:
            raise NotFound(
                f"parked cell {cell_id} of group {group!r} ran meanwhile, or is being retried; look"
                " again"
            )

    def skipped(self, group: str | None = None) -> list[ParkedCell]:
        """Those that were given up, in the same order."""
        return self.all(group, "skipped")

    def forget_row(self, row_key: UUID) -> int:
        """Drops the parked and skipped cells of a row that was erased: the errors may quote its
        bodies. Returns their number."""
        entries = [
            entry
            for queue in ("parked/", "skipped/")
            for entry in self._state.list(queue)
            if decode(entry).row_key == str(row_key)
        ]
        if entries:
            self._state.commit({entry.key: None for entry in entries})
        return len(entries)

    # --- a trigger that stopped -------------------------------------------------------------------

    def stop(self, group: str, reason: str) -> None:
        """Stops a trigger until somebody resumes it."""
        self._state.commit({f"stopped/{quote(group, safe='')}": reason.encode()})

    def stopped_because(self, group: str) -> str | None:
        entry = self._state.get(f"stopped/{quote(group, safe='')}")
        return entry.value.decode() if entry else None

    def resume(self, group: str, also: Mapping[str, bytes | None] | None = None) -> None:
        """Lets a stopped trigger resume. ``also`` is written in the same commit."""
        self._state.commit({**(also or {}), f"stopped/{quote(group, safe='')}": None})
