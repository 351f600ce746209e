"""The next batch of a unit: cells of its shards from where they are, encoded, bounded in cells and
in bytes.

Of logs that are far behind the cells of the batch after the next one are fetched while the next one
is encoded: the store works meanwhile, and nobody waits for it. They count only if they begin where
that batch ended; else they are fetched again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final, NamedTuple

from cellfeed.bridge.events.record_headers import LeaderEpochs
from cellfeed.bridge.export.limits import (
    FETCH_AHEAD_CELLS_MIN,
    LIVE_CELLS_MAX,
    SCAN_SHARD_CELLS_MIN,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_CELLS_MAX,
)
from cellfeed.bridge.export.records import OutRecord, RecordEncoder
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head, LogRange

_CELLS_MIN: Final = 64
"""Of a transaction, also where its cells are large."""


@dataclass(frozen=True, slots=True)
class Batch:
    """``records``: by shard, none of them empty, in order. ``ends``: where each shard continues
    behind it. ``cells``: that were looked at, whether they have a record or not."""

    records: dict[int, list[OutRecord]]
    ends: dict[int, int]
    too_large: list[ParkedCell]
    cells: int


class Turns:
    """Shards that take turns where not all of them fit: those that had none come first the next
    time."""

    def __init__(self, shards: Sequence[int]) -> None:
        self._shards = list(shards)

    def take(self, behind: Mapping[int, int], each: int, cells_max: int) -> list[tuple[int, int]]:
        """Shards and how many cells of each, at most ``each`` of one and ``cells_max`` of all.
        ``behind``: cells, at least one, of those that have any."""
        taken: list[tuple[int, int]] = []
        left = cells_max
        for place, shard in enumerate(self._shards, 1):
            if shard not in behind:
                continue
            if left <= 0:
                break
            taken.append((shard, min(each, behind[shard], left)))
            left -= taken[-1][1]
            turned = place
        if taken:
            self._shards = self._shards[turned:] + self._shards[:turned]
        return taken


class Fetched(NamedTuple):
    """Cells that have no records yet. ``begins``: where every shard was to continue. ``heads``:
    those that were known."""

    begins: dict[int, int]
    ranges: list[LogRange]
    cells: list[list[StoredCell]]
    heads: Mapping[int, Head]


class BatchReader:
    """Reads the batches of one unit, one after the other. Used by one thread at a time. ``ahead``
    fetches the cells behind the batch that is being encoded."""

    def __init__(
        self,
        engine: Engine,
        encoder: RecordEncoder,
        shards: Sequence[int],
        ahead: Executor | None = None,
    ) -> None:
        self._engine = engine
        self._encoder = encoder
        self._live, self._far = Turns(shards), Turns(shards)
        self._epochs: dict[int, LeaderEpochs] = {}
        self._cells_max = TRANSACTION_CELLS_MAX
        self._ahead = ahead
        self._fetching: Future[Fetched | None] | None = None

    def read(
        self,
        locations: Mapping[int, int],
        heads: Mapping[int, Head],
        cells_max: int = TRANSACTION_CELLS_MAX,
    ) -> Batch | None:
        """The next batch from these locations; None when no shard has any cell there. Raises
        CellfeedError."""
        fetching, self._fetching = self._fetching, None
        fetched = fetching.result() if fetching is not None else None
        if fetched is None or fetched.begins != locations:
            fetched = self._fetch(dict(locations), heads, cells_max)
        if fetched is None:
            return None
        ends = {
            each.shard: found[-1].added_id + 1
            for each, found in zip(fetched.ranges, fetched.cells, strict=True)
            if found
        }
        begins = {**locations, **ends}
        if (
            self._ahead is not None
            and sum(heads[shard].watermark - location for shard, location in begins.items())
            >= FETCH_AHEAD_CELLS_MIN
        ):
            self._fetching = self._ahead.submit(self._fetch, begins, heads, cells_max)
        return self._encoded(fetched)

    def _fetch(
        self, locations: dict[int, int], heads: Mapping[int, Head], cells_max: int
    ) -> Fetched | None:
        ranges = self._ranges(locations, heads, min(cells_max, self._cells_max))
        return Fetched(locations, ranges, self._engine.scan_many(ranges), heads) if ranges else None

    def _encoded(self, fetched: Fetched) -> Batch | None:
        records: dict[int, list[OutRecord]] = {}
        too_large: list[ParkedCell] = []
        ends: dict[int, int] = {}
        cells = bytes_read = 0
        for wanted, found in zip(fetched.ranges, fetched.cells, strict=True):
            if not found:
                continue
            encoded = self._encoder.encode(
                wanted.shard,
                found,
                self._epochs_of(wanted.shard, fetched.heads[wanted.shard].leader_epoch),
            )
            if encoded.records:
                records[wanted.shard] = encoded.records
            too_large += encoded.too_large
            ends[wanted.shard] = found[-1].added_id + 1
            cells += len(found)
            bytes_read += sum(len(record.value or b"") for record in encoded.records)
            if bytes_read > TRANSACTION_BYTES_MAX:
                break
        # Large cells: fewer are read the next time, more again when they are small.
        self._cells_max = (
            max(_CELLS_MIN, self._cells_max // 2)
            if bytes_read > TRANSACTION_BYTES_MAX
            else min(TRANSACTION_CELLS_MAX, self._cells_max * 2)
        )
        return Batch(records, ends, too_large, cells) if ends else None

    def _ranges(
        self, locations: Mapping[int, int], heads: Mapping[int, Head], cells_max: int
    ) -> list[LogRange]:
        """Live shards first, in at most half of the transaction, so that none of them waits until
        others have caught up; then those that are far behind."""
        live_max = (
            LIVE_CELLS_MAX if cells_max >= 2 * LIVE_CELLS_MAX else 0
        )  # of a transaction of a few cells all shards have their turn alike
        live, far = dict[int, int](), dict[int, int]()
        for shard, location in locations.items():
            if (cells := heads[shard].watermark - location) > 0:
                (live if cells <= live_max else far)[shard] = cells
        each = max(SCAN_SHARD_CELLS_MIN, cells_max // max(1, len(live) + len(far)))
        chosen = self._live.take(live, each, cells_max // 2 if far else cells_max)
        chosen += self._far.take(far, each, cells_max - sum(limit for _, limit in chosen))
        return [LogRange(shard, locations[shard], limit) for shard, limit in chosen]

    def _epochs_of(self, shard: int, newest: int) -> LeaderEpochs:
        known = self._epochs.get(shard)
        if known is None or known.newest != newest:
            known = self._epochs[shard] = LeaderEpochs(self._engine.leader_epochs(shard), newest)
        return known


class Throttle:
    """At most so many cells a second, all units of one process together. Safe to use from several
    threads."""

    def __init__(self, cells_per_s: int | None) -> None:
        self.cells_per_s = cells_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    @property
    def cells_max(self) -> int:
        """Of one transaction: a tenth of a second's."""
        return TRANSACTION_CELLS_MAX if self.cells_per_s is None else max(1, self.cells_per_s // 10)

    def wait(self, cells: int, stop: threading.Event) -> None:
        """Waits until so many cells may be exported, or ``stop`` is set."""
        if self.cells_per_s is None:
            return
        with self._lock:
            now_s = time.monotonic()
            begins_s = max(now_s, self._free_at_s)
            self._free_at_s = begins_s + cells / self.cells_per_s
        if begins_s > now_s:
            stop.wait(begins_s - now_s)
