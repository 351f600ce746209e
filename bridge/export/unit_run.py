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
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import KafkaException

from cellfeed.bridge.coordination.contract import Claim
from cellfeed.bridge.export.kafka_errors import Verdict, error_of, verdict, words
from cellfeed.bridge.export.limits import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    REFUSED_LOOK_S,
)
from cellfeed.bridge.export.taking_over import ExportContext, TakenOver, take_over
from cellfeed.bridge.export.unit_copy import UnitCopy
from cellfeed.bridge.export.unit_looks import UnitLooks
from cellfeed.bridge.export.unit_offsets import UnitOffsets
from cellfeed.bridge.export.unit_producer import UnitProducer
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import CellfeedError, DataDamaged, ProtectData, StaleWriter

_log: Final = logging.getLogger("cellfeed.export")

_AHEAD_THREADS: Final = 3
"""Of a unit: one reads the next batch, one fetches the cells of the one after it, one saves
offsets."""


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
        self._looks = UnitLooks(
            self.shards, context.heads_wanted, self.stop, lambda: self.offsets.are_awaited
        )
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
        """As :meth:`UnitLooks.note`."""
        self._looks.note(changed, look_s)

    def end(self) -> None:
        """Asks it to end after the transaction under way."""
        self.stop.set()
        self._looks.end_waits()

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
            self._take_over().run(ahead, self.stop)
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

    def _reset_backoff(self) -> None:
        self._backoff_s = BACKOFF_FIRST_S

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

    def _take_over(self) -> UnitCopy:
        context, begun_s = self._context, time.monotonic()
        self.offsets.check_claims()
        # Also after an error of one's own: the marks of the last commit may still be on their way,
        # and a reader of commits would see the end before it.
        self._give_producer_up()
        self._note(
            "waiting for the Kafka cluster to end transactions that earlier exporters left open"
        )
        self._producer = producer = UnitProducer(
            context.export, self.unit, context.topic, self.stop, self._note
        )
        producer.fence()
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
        return UnitCopy(
            context=context,
            shards=self.shards,
            heads=self._heads,
            taken=taken,
            producer=producer,
            offsets=self.offsets,
            progress=self.progress,
            looks=self._looks,
            on_commit=self._reset_backoff,
        )
