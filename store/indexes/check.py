"""Compares an index with the cells, both ways, and mends the differences.

The entry that a row should have follows from its cells below a location
(:meth:`cellfeed.store.indexes.version.IndexVersion.entry_of`). **Cells to entries**: each row with
a cell in the logs up to their ends is looked for where it should be. **Entries to cells**: each
live entry is compared with its row's cells.

    missing     the row should have an entry, and there is none at its place
    stale       there is one with other fields or ref keys than the cells say, or where the row has
                been before
    invented    the row's cells never named that place

Rows change meanwhile, and the index follows a moment later. So a first finding is only a suspect.
The check looks at each suspect again when the index has passed the end that the log had. It is a
difference if the row has no newer cell and its entry is still wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import (
    ANY_FENCE,
    Encoded,
    Entry,
)
from cellfeed.store.errors import StorageUnavailable, Trimmed
from cellfeed.store.indexes.difference import CheckReport, Difference, Kind
from cellfeed.store.indexes.query import Positions
from cellfeed.store.indexes.row_entries import RowEntries
from cellfeed.store.indexes.version import IndexVersion

WAIT_S: Final = 60.0
"""How long a check waits for the index to come to the end of a log, in seconds."""

_CELLS: Final = 2_000
_ENTRIES: Final = 1_000
_LOOKS_MAX: Final = 20
"""Looks at a row that gets new cells all the time, before it is reported as not settled."""

OnProgress = Callable[[int], None]


class IndexCheck:
    """See the module. Used by one thread. ``positions`` returns how far the index is."""

    def __init__(
        self, engine: Engine, version: IndexVersion, positions: Positions, wait_s: float = WAIT_S
    ) -> None:
        self._engine = engine
        self._store = engine.indexes
        self._rows = RowEntries(self._store, version)
        self._version = version
        self._positions = positions
        self._wait_s = wait_s
        self.report = CheckReport()

    def total(self) -> int:
        """Cells that a run walks through, about; entries come on top."""
        return sum(head.watermark - head.log_start for head in self._engine.heads().values())

    def run(self, on_progress: OnProgress = lambda _: None) -> Iterator[Difference]:
        """Every difference, once. Raises StorageUnavailable when the index does not come to the end
        of a log in time."""
        reported: set[tuple[bytes, Kind, Encoded | None]] = set()
        for suspects in (self._rows_of_logs(on_progress), self._rows_of_entries(on_progress)):
            for row_keys in suspects:
                for difference in self._settled(row_keys):
                    key = (
                        difference.row_key,
                        difference.kind,
                        difference.found.values[0] if difference.found else None,
                    )
                    if key not in reported:
                        reported.add(key)
                        self.report.differences += 1
                        yield difference

    # --- walking ----------------------------------------------------------------------------------

    def _rows_of_logs(self, on_progress: OnProgress) -> Iterator[list[tuple[bytes, Entry | None]]]:
        """Rows whose entry in the index differs from the one by the cells of their shard's log."""
        columns = set(self._version.definition.columns)
        for shard, head in self._engine.heads().items():
            location = head.log_start
            while location < head.watermark:
                cells = self._scanned(shard, location, min(_CELLS, head.watermark - location))
                if not cells:
                    break
                location = cells[-1].added_id + 1
                row_keys = list(
                    {cell.row_key: None for cell in cells if cell.column_name in columns}
                )
                self.report.cells += len(cells)
                on_progress(len(cells))
                wanted = self._rows.wanted(shard, row_keys, head.watermark, ANY_FENCE)
                found = self._rows.found(_places(wanted.values()))
                yield [
                    (row_key, None)
                    for row_key, entry in wanted.items()
                    if entry is not None and found.get((entry.place[0], row_key)) != entry
                ]

    def _rows_of_entries(
        self, on_progress: OnProgress
    ) -> Iterator[list[tuple[bytes, Entry | None]]]:
        """Live entries that are not as they should be."""
        for shard in range(self._engine.shards):
            after = None
            while entries := self._store.walk(self._version.table, shard, after, _ENTRIES):
                after = entries[-1].place
                live = [entry for entry in entries if entry.live]
                self.report.entries += len(live)
                self.report.tombstones += len(entries) - len(live)
                on_progress(len(entries))
                heads = self._engine.heads()
                by_shard: dict[int, list[bytes]] = {}
                for entry in live:
                    by_shard.setdefault(shard_of(entry.row_key, self._engine.shards), []).append(
                        entry.row_key
                    )
                wanted: dict[bytes, Entry | None] = {}
                for row_shard, row_keys in by_shard.items():
                    wanted.update(
                        self._rows.wanted(
                            row_shard, row_keys, heads[row_shard].watermark, ANY_FENCE
                        )
                    )
                yield [(entry.row_key, entry) for entry in live if wanted[entry.row_key] != entry]

    # --- judging ----------------------------------------------------------------------------------

    def _settled(self, suspects: Sequence[tuple[bytes, Entry | None]]) -> Iterator[Difference]:
        """The differences among suspects; each is looked at until its row stands still."""
        for row_key, suspect in suspects:
            shard = shard_of(row_key, self._engine.shards)
            for _ in range(_LOOKS_MAX):
                fence = self._store.fences([shard])[shard]
                end = self._engine.heads([shard])[shard].watermark
                self._wait_for(shard, end)
                wanted = self._rows.wanted(shard, [row_key], end, fence)[row_key]
                places = {entry.place[0]: entry for entry in (wanted, suspect) if entry is not None}
                found = self._rows.found(_places(places.values()))
                now = self._engine.heads([shard])[shard].watermark
                if self._rows.wanted(shard, [row_key], now, fence)[row_key] == wanted:
                    yield from self._judged(
                        row_key, wanted, [found.get((value, row_key)) for value in places], fence
                    )
                    break
            else:
                self.report.unsettled += 1

    def _judged(
        self, row_key: bytes, wanted: Entry | None, found: Sequence[Entry | None], fence: int
    ) -> Iterator[Difference]:
        place = wanted.values[0] if wanted is not None else None
        live = [entry for entry in found if entry is not None and entry.live]
        if wanted is not None and not any(entry.values[0] == place for entry in live):
            blocked = next(
                (entry for entry in found if entry is not None and entry.values[0] == place), None
            )
            yield Difference(
                "missing",
                row_key,
                self._version.shard_of_value(wanted.place[0]),
                blocked,
                wanted,
                fence,
            )
        for entry in live:
            if entry == wanted:
                continue
            kind: Kind = (
                "stale"
                if entry.values[0] == place or self._was_at(row_key, entry.place[0])
                else "invented"
            )
            yield Difference(
                kind, row_key, self._version.shard_of_value(entry.place[0]), entry, wanted, fence
            )

    def _was_at(self, row_key: bytes, value: Encoded) -> bool:
        """Whether a cell of the row ever named the place: rare, so the row's log is read."""
        shard = shard_of(row_key, self._engine.shards)
        head = self._engine.heads([shard])[shard]
        location = head.log_start
        while cells := self._scanned(shard, location, _CELLS):
            location = cells[-1].added_id + 1
            for cell in cells:
                if (
                    cell.row_key == row_key
                    and self._version.column_number(cell.column_name) == 0
                    and self._version.values_of(0, cell)[0] == value
                ):
                    return True
        return False

    def _scanned(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        """Cells from there on, or from where the log starts if it was trimmed meanwhile."""
        try:
            return self._engine.scan(shard, location, limit)
        except Trimmed:
            return self._engine.scan(shard, self._engine.heads([shard])[shard].log_start, limit)

    def _wait_for(self, shard: int, location: int) -> None:
        deadline_s = time.monotonic() + self._wait_s
        while self._positions(self._version.group).get(shard, 0) < location:
            if time.monotonic() > deadline_s:
                raise StorageUnavailable(
                    f"index {self._version.definition.table!r} has not come to {location} in shard"
                    f" {shard} within {self._wait_s:.0f} s: is an index worker running?"
                )
            time.sleep(0.01)


def _places(entries: Iterable[Entry | None]) -> list[tuple[Encoded, bytes]]:
    return [entry.place for entry in entries if entry is not None]
