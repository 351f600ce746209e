"""Takes the entries of trimmed cells out of the indexes, so that an index still agrees with the
cells (I18).

An entry names the shard value of a cell, which nobody knows any more once the cell is gone. So a
step of a trim is three:

    1. the places that the cells to be trimmed name are noted in the state table,
       ``trims/<shard>/<index>/<version>/<first added_id>``
    2. the cells go (E15)
    3. the shard's fence is raised. Then each row is looked at, at the places noted and where it
       should be by the cells that it still has. Entries that should not be there are removed,
       tombstones as well: they would keep away later puts. Missing entries are merged in. Then the
       note is deleted

Index workers continue meanwhile. An entry from before the raise is written before it, and step 3
sees it, or it is refused. An entry from after the raise holds nothing that has gone
(:mod:`cellfeed.store.engines.contract.index_fences`). So nobody brings an entry of a trimmed cell
back: neither a worker that was paused and overtaken, nor the owner of the shard that has read an
older cell of a row.

New cells come meanwhile as well, and their entries are newer than those that step 3 has read. So
rows that lost an entry are looked at once more. A cell whose entry could have been among the
removed is in the log at that moment, and is merged again.

Crash points: before 2 the note names rows that are as they should be, and nothing comes of it.
Between 2 and the end of 3 the entries of some rows are stale, or missing. A fresh query leaves the
stale ones out, as it checks the cells; ``index verify`` names them. The next trim of the shard
begins with the notes that it finds, and workers look for notes that nobody settles
(:mod:`cellfeed.store.indexes.left_notes`). All of it may be repeated, by several at once: the one
whose fence is no longer the latest is refused, and looks again.

**A note stays while its cells are there.** An erasure may settle the shard between 1 and 2, and so
may a worker. The cells go after that, and only the note says where their entries are. A row that is
erased leaves the notes at once, because they name its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import Encoded, Entry
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import StaleView, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.indexes.query import Indexes
from cellfeed.store.indexes.row_entries import RowEntries
from cellfeed.store.indexes.trim_notes import NOTES
from cellfeed.store.indexes.version import IndexVersion
from cellfeed.store.limits import TRIM_STEP_CELLS

declare("index.trim.noted", "index.trim.trimmed", "index.trim.removed", "index.trim.before_done")

_LOOKS_MAX: Final = 20
"""How often a settling is begun again when somebody else raises the fence."""


class _Note(msgspec.Struct, frozen=True):
    """Rows with cells of the index that go, and of each the shard values that these cells name.
    ``end``: the added_id behind these cells; 0 in notes of earlier versions."""

    index: str
    version: int
    rows: dict[bytes, list[Encoded]]
    end: int = 0


_decode: Final = msgspec.msgpack.Decoder(_Note).decode


class IndexedTrim:
    """Trims a datastore, and its indexes with it. Used by one thread."""

    def __init__(self, engine: Engine, indexes: Indexes, trim: Callable[[int, int], int]) -> None:
        """``trim``: one step of a trim of a shard below an added_id, reported to readers at
        once."""
        self._engine = engine
        self._indexes = indexes
        self._trim = trim

    def step(self, shard: int, start: int, below: int) -> int:
        """One step of a trim of a log that starts at ``start``; where it starts then. Raises
        Unavailable: then it is repeated, or :meth:`settle` is run."""
        versions = self._indexes.kept_versions()
        if not versions:
            return self._trim(shard, below)
        while True:
            erasures = self._erasures(shard)
            cells = self._engine.scan(shard, start, min(TRIM_STEP_CELLS, below - start))
            end = min(below, cells[-1].added_id + 1) if cells else below
            self._note(shard, cells, versions, end)
            if self._erasures(shard) == erasures:
                break  # else the note may name values of a row that was erased since the scan
        failpoint("index.trim.noted")
        while start < end:
            start = self._trim(shard, end)
        failpoint("index.trim.trimmed")
        self.settle(shard)
        return start

    def _erasures(self, shard: int) -> int:
        return self._engine.heads([shard])[shard].erasures

    def _note(
        self, shard: int, cells: Sequence[StoredCell], versions: Iterable[IndexVersion], end: int
    ) -> None:
        """Step 1."""
        write: dict[str, bytes | None] = {}
        for version in versions:
            rows: dict[bytes, list[Encoded]] = {}
            for cell in cells:
                number = version.column_number(cell.column_name)
                if number is None:
                    continue
                places = rows.setdefault(cell.row_key, [])
                if (
                    number == 0
                    and (value := version.values_of(0, cell)[0]) is not None
                    and value not in places
                ):
                    places.append(value)
            if rows:
                note = _Note(version.definition.table, version.number, rows, end)
                write[f"{NOTES}{shard}/{note.index}/{note.version}/{cells[0].added_id}"] = (
                    msgspec.msgpack.encode(note)
                )
        if write:
            self._engine.state.commit(write)

    def settle(self, shard: int, erased: bytes | None = None) -> int:
        """Step 3, for all notes of the shard; how many entries were removed. ``erased``: the key of
        a row that leaves the notes. Raises StorageUnavailable, OutcomeUnknown: then it is
        repeated."""
        for _ in range(_LOOKS_MAX):
            if not (entries := self._engine.state.list(f"{NOTES}{shard}/")):
                return 0
            fence = self._engine.indexes.raise_fences([shard])[shard]
            with suppress(StaleView):
                return self._settle_all(shard, entries, fence, erased)
        raise StorageUnavailable(
            f"shard {shard} is trimmed elsewhere, or rows of it are erased, all the time: its index"
            " entries are not settled yet"
        )

    def _settle_all(
        self, shard: int, entries: Sequence[StateEntry], fence: int, erased: bytes | None
    ) -> int:
        kept = {
            (version.definition.table, version.number): version
            for version in self._indexes.kept_versions()
        }
        changed = 0
        log_start = self._engine.heads([shard])[shard].log_start  # before the looks at its entries
        for entry in entries:
            note = _decode(entry.value)
            version = kept.get((note.index, note.version))
            if version is not None:
                changed += self._settle(shard, version, note.rows, fence)
            failpoint("index.trim.before_done")
            if version is None or note.end <= log_start:
                self._write(entry, None)
            elif erased in note.rows:
                rows = {row: values for row, values in note.rows.items() if row != erased}
                self._write(entry, msgspec.msgpack.encode(msgspec.structs.replace(note, rows=rows)))
        return changed

    def _write(self, entry: StateEntry, value: bytes | None) -> None:
        """Does nothing where another trim has written the note since: that trim settles it."""
        self._engine.state.commit({entry.key: value}, expect={entry.key: entry.version})

    def _settle(
        self, shard: int, version: IndexVersion, rows: Mapping[bytes, Sequence[Encoded]], fence: int
    ) -> int:
        store = self._engine.indexes
        wanted, found = self._look(shard, version, rows, fence)
        wrong: list[Entry] = [entry for entry in found.values() if entry != wanted[entry.row_key]]
        instead = [
            right
            for entry in wrong
            if (right := wanted[entry.row_key]) is not None and right.place == entry.place
        ]
        if wrong:
            store.remove(
                version.table, version.by_shard(wrong), {shard: fence}, version.by_shard(instead)
            )
        failpoint("index.trim.removed")
        if wrong:
            wanted, found = self._look(shard, version, rows, fence)
        missing = [
            entry
            for entry in wanted.values()
            if entry is not None and found.get(entry.place) != entry
        ]
        if missing:
            store.apply(version.table, version.by_shard(missing), {shard: fence})
        return len(wrong)

    def _look(
        self, shard: int, version: IndexVersion, rows: Mapping[bytes, Sequence[Encoded]], fence: int
    ) -> tuple[dict[bytes, Entry | None], dict[tuple[Encoded, bytes], Entry]]:
        """The entries that the rows should have, and the present ones at their places."""
        entries = RowEntries(self._engine.indexes, version)
        wanted = entries.wanted(
            shard, list(rows), self._engine.heads([shard])[shard].watermark, fence
        )
        places = [(value, row_key) for row_key, values in rows.items() for value in values]
        places += [
            entry.place
            for entry in wanted.values()
            if entry is not None and entry.values[0] not in rows[entry.row_key]
        ]
        return wanted, entries.found(places)
