"""The work of one exporter on one unit: a thread that copies the logs of its shards into their
partitions, until it is stopped or has lost the unit.

The thread asks first whether its claims hold, then fences the unit's earlier producers. Then it
reads the ends of the partitions and continues behind them (``resume.py``). So the partition equals
the log after any end of the owner before (I15). Crash points:

    before the transaction          nothing was sent
    after records were sent         the next owner's fencing aborts them; readers of committed
                                    records never see them
    before the commit               the same
    inside the commit               fencing waits until it is done or undone: the tail that is read
                                    then says which
    after it, before the offset is saved        the tail holds the cells: the next owner continues
                                                behind them, and mends the offset
    paused and overtaken            the broker refuses further records: the producer has an older
                                    epoch; the claims are asked, and are void
    parked, before the commit       entries of parked cells are written before the transaction that
                                    passes them commits: nothing passes a cell unnoticed;
                                    after a crash in between the next owner reaches the cell again
                                    and writes the same entry
    coordination away               the unit continues: the fence is Kafka's, the offset is saved
                                    when coordination is back
    a session ended, a new one begun        the shards are claimed again and the unit continues. Had
                                            another process taken it over and given it back in
                                            between, the broker refuses the next transaction, as
                                            above; it is taken over once more, under claims that
                                            hold

While the cluster is away nothing is read from the log but the batch under way and the one after it,
so memory stays bounded; the log is the store's and waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from confluent_kafka import KafkaException

from cellfeed.bridge.coordination.contract import Claim
from cellfeed.bridge.export.batches import Batch, BatchReader
from cellfeed.bridge.export.kafka_errors import Verdict, error_of, verdict, words
from cellfeed.bridge.export.limits import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    READ_AHEAD_CELLS_MIN,
    REFUSED_LOOK_S,
    SAVE_EVERY_S,
)
from cellfeed.bridge.export.pace import Pace
from cellfeed.bridge.export.taking_over import ExportContext, TakenOver, take_over
from cellfeed.bridge.export.unit_offsets import UnitOffsets
from cellfeed.bridge.export.unit_producer import UnitProducer
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import CellfeedError, DataDamaged, ProtectData, StaleWriter

_log: Final = logging.getLogger("cellfeed.export")

_AHEAD_THREADS: Final = 2
"""Of a unit: one reads the next batch, the other one fetches the cells of the one after it."""


class UnitRun:
    """See the module. ``epoch``: of the session in which the claims were made."""

    def __init__(
        self,
        context: ExportContext,
        unit: int,
        claims: Mapping[int, Claim],
        epoch: int,
        heads: Mapping[int, Head],
    ) -> None:
        self._context = context
        self.unit = unit
        self.shards: Sequence[int] = sorted(claims)
        self.offsets = UnitOffsets(context, unit, claims, epoch)
        self.stop = threading.Event()
        self.lost = False
        """Whether it ended because another exporter has the unit."""
        self.refused: ProtectData | None = None
        """Why it stands still, as long as it does."""
        self.progress = {shard: Progress() for shard in self.shards}
        self._heads = heads
        self._news = threading.Condition()
        self._looks = 0
        self._changes = 0
        """Looks that found heads of its shards changed. ``heads`` has a change before it is counted
        here. So a unit that has read all logs to their ends reads again when this rises."""
        self._awaits_change = False
        self._pace = Pace()
        self._parked = ParkedCells(context.datastore.state)
        self._producer: UnitProducer | None = None
        self._taken = TakenOver({}, {}, {})
        self._backoff_s = BACKOFF_FIRST_S
        self._thread = threading.Thread(
            target=self._run, name=f"export-{context.export.name}-{unit}", daemon=True
        )
        self.failed: BaseException | None = None
        """A defect that ended the thread."""

    def start(self) -> None:
        self._thread.start()

    def note_heads(self, changed: Collection[int], look_s: float) -> None:
        """Takes the result of a look at the logs, and wakes the thread that waits for it.
        ``changed``: shards whose heads changed. ``look_s``: the seconds that the look took."""
        with self._news:
            self._looks += 1
            self._pace.looked(look_s)
            if not self.progress.keys().isdisjoint(changed):
                self._changes += 1
            elif self._awaits_change and not self.offsets.are_awaited:
                self._context.heads_wanted.set()
                return
            self._news.notify_all()

    def end(self) -> None:
        """Asks it to end after the transaction under way."""
        self.stop.set()
        with self._news:
            self._news.notify_all()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        ahead = ThreadPoolExecutor(_AHEAD_THREADS, thread_name_prefix=f"export-ahead-{self.unit}")
        try:
            while not self.stop.is_set() and not self.lost:
                self._work(ahead)
            self.offsets.save(self._taken)
        except StaleWriter as error:
            self._lose(error)
        except CellfeedError as error:
            self._note(f"ended: {error}")  # the offset is a mirror: the next owner mends it
        except BaseException as error:
            self.failed = error
        finally:
            self._give_producer_up()
            ahead.shutdown()

    def _work(self, ahead: ThreadPoolExecutor) -> None:
        """Takes the unit over and copies until something comes in between; waits then, and says
        why."""
        try:
            self._take_over()
            self._copy(ahead)
        except StaleWriter as error:
            self._lose(error)
        except KafkaException as error:
            self._after(error)
        except ProtectData as error:
            self.refused = error
            self._wait(f"stands still: {error}", REFUSED_LOOK_S)
        except DataDamaged as error:
            self._wait(f"stands still: {error}", REFUSED_LOOK_S)
        except CellfeedError as error:
            self._wait(f"waiting: {error}", self._next_backoff_s())

    def _lose(self, error: StaleWriter) -> None:
        _log.warning(
            "%s: unit %d is another exporter's: %s", self._context.export.group, self.unit, error
        )
        self.lost = True

    def _after(self, error: KafkaException) -> None:
        found = error_of(error)
        self._give_producer_up()
        said = (
            "another exporter has taken the unit"
            if verdict(found) is Verdict.FENCED
            else "the Kafka cluster"
        )
        self._wait(f"waiting: {said}: {words(found)}", self._next_backoff_s())

    def _next_backoff_s(self) -> float:
        wait_s, self._backoff_s = self._backoff_s, min(BACKOFF_MAX_S, self._backoff_s * 2)
        return wait_s

    def _wait(self, because: str, wait_s: float) -> None:
        self._note(because)
        _log.warning("%s: unit %d %s", self._context.export.group, self.unit, because)
        self.stop.wait(wait_s)

    def _note(self, because: str) -> None:
        for each in self.progress.values():
            each.because = because

    def _give_producer_up(self) -> None:
        if self._producer is not None:
            self._producer.give_up()
            self._producer = None

    # --- taking over ------------------------------------------------------------------------------

    def _take_over(self) -> None:
        context, begun_s = self._context, time.monotonic()
        self.offsets.check_claims()
        # Also after an error of one's own: the marks of the last commit may still be on their way,
        # and a reader of commits would see the end before it.
        self._give_producer_up()
        self._note(
            "waiting for the Kafka cluster to end transactions that earlier exporters left open"
        )
        self._producer = UnitProducer(
            context.export, self.unit, context.topic, self.stop, self._note
        )
        self._producer.fence()
        fenced_s = time.monotonic()
        self._taken = taken = take_over(context, self.shards)
        spent = (
            f"{fenced_s - begun_s:.1f} s to end open transactions,"
            f" {time.monotonic() - fenced_s:.1f} s to read the ends of its partitions"
        )
        _log.info("%s: unit %d was taken over: %s", context.export.group, self.unit, spent)
        self.refused = None
        self.offsets.moved(self.shards)
        for shard, location in taken.locations.items():
            self.progress[shard].location = location
            self.progress[shard].because = (
                "nothing has come since its exporter took it"
                if location >= self._heads[shard].watermark
                else "resumes"
            )
        self.offsets.save(taken, are_seen=True)

    # --- copying ----------------------------------------------------------------------------------

    def _copy(self, ahead: ThreadPoolExecutor) -> None:
        context, taken = self._context, self._taken
        reader = BatchReader(context.datastore.engine, context.encoder, self.shards, ahead)
        cells_max = context.throttle.cells_max
        following: Future[Batch | None] | None = None
        all_read_at = -1
        try:
            while not self.stop.is_set():
                if (refusal := context.refusal) is not None:
                    raise ProtectData(refusal)
                batch = following.result() if following is not None else None
                following = None
                changes = self._changes
                if batch is None and changes != all_read_at:
                    batch = reader.read(taken.locations, self._heads, cells_max)
                if batch is None:
                    if not self._behind(taken.locations):
                        all_read_at = changes
                    self._idle(changes)
                    continue
                context.throttle.wait(batch.cells, self.stop)
                if self.stop.is_set():
                    return
                begins = {**taken.locations, **batch.ends}
                # Of a log that is behind the next batch is read meanwhile. Of one that is not, it
                # is read when this one is committed, or looked for meanwhile.
                if is_behind := self._behind(begins) >= READ_AHEAD_CELLS_MIN:
                    following = ahead.submit(reader.read, begins, self._heads, cells_max)
                elif self._pace.looks_meanwhile:
                    following = ahead.submit(self._look_and_read, reader, begins, cells_max)
                begun_s = time.monotonic()
                if batch.records:
                    self._producer_at_work().begin(batch.records)
                self._commit(batch)
                if batch.records and not is_behind:
                    self._pace.committed(time.monotonic() - begun_s)
        finally:
            if following is not None:
                following.cancel()
                following.exception() if following.done() and not following.cancelled() else None

    def _behind(self, locations: Mapping[int, int]) -> int:
        return sum(max(0, self._heads[shard].watermark - locations[shard]) for shard in self.shards)

    def _look_and_read(
        self, reader: BatchReader, locations: Mapping[int, int], cells_max: int
    ) -> Batch | None:
        with self._news:
            looks = self._looks
            self._wait_for_news(lambda: self._looks > looks)
        return reader.read(locations, self._heads, cells_max)

    def _commit(self, batch: Batch) -> None:
        taken = self._taken
        if batch.too_large:
            entries: dict[str, bytes | None] = {}
            for cell in batch.too_large:
                entries |= self._parked.entry(cell)
                self.progress[cell.partition].parked += 1
                _log.warning(
                    "%s: cell %s is parked: %s",
                    self._context.export.group,
                    cell.cell_id,
                    cell.error,
                )
            self._context.datastore.state.commit(entries)
        if batch.records:
            taken.ends.update(self._producer_at_work().commit(taken.ends))
            self._backoff_s = BACKOFF_FIRST_S
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
        self._context.counted(batch)
        self.offsets.save_where_due(taken)

    def _idle(self, changes: int) -> None:
        """Waits for heads to change after so many changes. An offset that is behind is saved
        first."""
        self.offsets.save_where_due(self._taken)
        with self._news:
            self._awaits_change = True
            self._wait_for_news(lambda: self._changes > changes)
            self._awaits_change = False

    def _wait_for_news(self, has_come: Callable[[], bool]) -> None:
        """Waits, under the lock, at most as long as an offset may be behind."""
        if not has_come() and not self.stop.is_set():
            self._context.heads_wanted.set()
            self._news.wait_for(
                lambda: has_come() or self.stop.is_set() or self.offsets.are_awaited, SAVE_EVERY_S
            )

    def _producer_at_work(self) -> UnitProducer:
        assert self._producer is not None, "a unit that was taken over has a producer"  # noqa: S101 (an invariant of this module)
        return self._producer
