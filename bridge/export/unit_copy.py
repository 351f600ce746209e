"""Copies the logs of a unit's shards behind its positions, transaction by transaction, until the
unit is stopped or something comes in between. ``unit_run.py`` lists the crash points."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from cellfeed.bridge.export.batches import Batch, BatchReader
from cellfeed.bridge.export.read_ahead import ReadAhead
from cellfeed.bridge.export.taking_over import ExportContext, TakenOver
from cellfeed.bridge.export.unit_looks import UnitLooks
from cellfeed.bridge.export.unit_offsets import UnitOffsets
from cellfeed.bridge.export.unit_producer import UnitProducer
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import ProtectData

_log: Final = logging.getLogger("cellfeed.export")


@dataclass(frozen=True)
class UnitCopy:
    """Belongs to the unit's thread, from one taking over to the next error. It keeps ``taken`` and
    ``progress`` up to date, and calls ``on_commit`` after each transaction."""

    context: ExportContext
    shards: Sequence[int]
    heads: Mapping[int, Head]
    taken: TakenOver
    producer: UnitProducer
    offsets: UnitOffsets
    progress: Mapping[int, Progress]
    looks: UnitLooks
    on_commit: Callable[[], None]

    def run(self, threads: ThreadPoolExecutor, stop: threading.Event) -> None:
        """Copies until ``stop`` is set. Raises errors of the store, of Kafka and of coordination;
        ProtectData once the topic must not be exported to any more."""
        context, taken = self.context, self.taken
        reads = ReadAhead(
            BatchReader(context.datastore.engine, context.encoder, self.shards, threads),
            self.heads,
            self.looks,
            threads,
            context.throttle.cells_max,
        )
        try:
            while not stop.is_set():
                if (refusal := context.refusal) is not None:
                    raise ProtectData(refusal)
                batch = reads.next(taken.locations)
                if batch is None:
                    self.offsets.save_where_due(taken, threads)
                    reads.wait()
                    continue
                context.throttle.wait(batch.cells, stop)
                if stop.is_set():
                    return
                is_behind = reads.begin({**taken.locations, **batch.ends})
                begun_s = time.monotonic()
                if batch.records:
                    self.producer.begin(batch.records)
                self._commit(batch, threads)
                if batch.records and not is_behind:
                    self.looks.pace.committed(time.monotonic() - begun_s)
        finally:
            reads.close()

    def _commit(self, batch: Batch, threads: ThreadPoolExecutor) -> None:
        taken = self.taken
        if batch.too_large:
            self._park(batch.too_large)
        if batch.records:
            taken.ends.update(self.producer.commit(taken.ends))
            self.on_commit()
        for shard, records in batch.records.items():
            taken.exported[shard] = records[-1].added_id
        now_s = time.time()
        for shard, location in batch.ends.items():
            taken.locations[shard] = location
            progress = self.progress[shard]
            progress.location, progress.last_progress_s, progress.because = (
                location,
                now_s,
                f"came to {location - 1}",
            )
        self.offsets.moved(batch.ends)
        self.context.counted(batch)
        self.offsets.save_where_due(taken, threads)

    def _park(self, cells: Sequence[ParkedCell]) -> None:
        parked, entries = ParkedCells(self.context.datastore.state), dict[str, bytes | None]()
        for cell in cells:
            entries |= parked.entry(cell)
            self.progress[cell.partition].parked += 1
            _log.warning(
                "%s: cell %s is parked: %s",
                self.context.export.group,
                cell.cell_id,
                cell.error,
            )
        self.context.datastore.state.commit(entries)
