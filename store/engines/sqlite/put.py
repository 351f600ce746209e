"""The statements of one put, inside a write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from crc32c import crc32c

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.checksum import pack_key
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.engines.contract.repeated_cells import (
    StoredTriple,
    not_compared,
    outcomes_before,
    repeated,
    without_erased,
)
from cellfeed.store.engines.sqlite.cells import INSERT_CELL, counter_of, position_of
from cellfeed.store.engines.sqlite.erase import erased_among
from cellfeed.store.engines.sqlite.key_reads import find_indexed
from cellfeed.store.errors import DataDamaged
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.put.before_insert", "sqlite.put.before_counter")


class PutTransaction:
    """See the module. ``now_us``: the storage's clock."""

    def __init__(self, connection: sqlite3.Connection, now_us: int) -> None:
        self._connection = connection
        self._now_us = now_us

    def run(
        self, cells: Sequence[NewCell], shards: Sequence[int], bodies: Sequence[bytes]
    ) -> list[PutResult]:
        """Outcomes in the order of ``cells``."""
        # First without looking for duplicates: the unique key complains when there is one, and only
        # then is each cell looked up (a third cheaper).
        self._connection.execute("SAVEPOINT optimistic")
        try:
            results = self._insert(cells, shards, bodies, [None] * len(cells))
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK TO optimistic")
            results = self._insert(cells, shards, bodies, self._known(cells, shards))
        self._connection.execute("RELEASE optimistic")
        return results

    def _insert(
        self,
        cells: Sequence[NewCell],
        shards: Sequence[int],
        bodies: Sequence[bytes],
        known: Sequence[PutResult | int | None],
    ) -> list[PutResult]:
        counters = {shard: self._counter(shard) for shard in sorted(set(shards))}
        if any(counter.erasures for counter in counters.values()):
            erased = erased_among(
                self._connection,
                {
                    cell.row_key
                    for cell, shard in zip(cells, shards, strict=True)
                    if counters[shard].erasures
                },
            )
            known = without_erased(cells, shards, known, erased)
        results: list[PutResult] = []
        rows: list[tuple[object, ...]] = []
        for cell, shard, body, before in zip(cells, shards, bodies, known, strict=True):
            if isinstance(before, PutResult):
                results.append(before)
            elif before is not None:
                results.append(repeated(cells[before], results[before], cell))
            else:
                counter = counters[shard]
                added_id = counter.next_added_id
                row_key, column, ref_key, at_us = (
                    cell.row_key,
                    cell.column_name,
                    cell.ref_key,
                    counter.created_at_us,
                )
                crc = crc32c(
                    pack_key(added_id, ref_key, at_us, row_key) + column.encode() + body
                )  # cell_checksum, written out
                rows.append(
                    (position_of(shard, added_id), row_key, column, ref_key, at_us, body, crc)
                )
                results.append(PutResult(Outcome.STORED, shard, added_id))
                counter.next_added_id += 1
        failpoint("sqlite.put.before_insert")
        self._connection.executemany(INSERT_CELL, rows)
        failpoint("sqlite.put.before_counter")
        self._connection.executemany(
            "UPDATE shard_counter SET next_added_id = ?, last_created_at_us = ? WHERE shard = ?",
            [
                (counter.next_added_id, counter.created_at_us, shard)
                for shard, counter in counters.items()
                if counter.moved
            ],
        )
        return results

    def _counter(self, shard: int) -> _Counter:
        next_added_id, last_created_at_us, erasures = counter_of(
            self._connection, shard, "next_added_id, last_created_at_us, erasures"
        )
        return _Counter(next_added_id, max(self._now_us, last_created_at_us), erasures)

    def _known(
        self, cells: Sequence[NewCell], shards: Sequence[int]
    ) -> list[PutResult | int | None]:
        stored, damaged = {}, {}
        for triple, shard in {
            cell.triple: shard for cell, shard in zip(cells, shards, strict=True)
        }.items():
            try:
                if (found := find_indexed(self._connection, triple)) is not None:
                    stored[triple] = StoredTriple(found.shard, found.cell.added_id, found.cell.body)
            except (
                DataDamaged
            ) as error:  # it fails the puts of this cell, not those of the others in the group
                damaged[triple] = not_compared(triple, shard, error)
        return [
            damaged.get(cell.triple, before)
            for cell, before in zip(cells, outcomes_before(cells, stored), strict=True)
        ]


class _Counter:
    """A shard's counter inside one transaction."""

    def __init__(self, next_added_id: int, created_at_us: int, erasures: int) -> None:
        self._first = self.next_added_id = next_added_id
        self.created_at_us = created_at_us
        self.erasures = erasures

    @property
    def moved(self) -> bool:
        return self.next_added_id > self._first
