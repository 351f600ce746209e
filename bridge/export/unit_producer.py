"""The transactional producers of one unit: they fence the unit's earlier producers, then send one
transaction after the other.

Two take turns. A broker answers a commit before it has written the transaction's marks into the
partitions. Until then it refuses the same producer's next transaction, and the client tries that
again 20 ms later. The other producer may begin at once. It never begins before the commit of the
transaction before is known. So no two transactions are open, and records are committed in the order
of the log.

Every call that waits for the cluster returns at least every few seconds to look whether it is to
end. So nothing hangs while the cluster is away. Sent records without an answer leave the client's
memory by its time-out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cellfeed.bridge.events.record_headers import ADDED_ID, Headers
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_clients import producer_of, transactional_id
from cellfeed.bridge.export.kafka_errors import Verdict, error_of, verdict, words
from cellfeed.bridge.export.limits import KAFKA_CALL_S, TRANSACTION_TIMEOUT_S
from cellfeed.bridge.export.records import OutRecord
from cellfeed.store.errors import PartitionMoved, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare(
    "export.before_begin",
    "export.after_produce",
    "export.before_commit",
    "export.after_commit",
    "export.after_fencing",
)

PRODUCERS: Final = 2
"""See the module."""

_BEGIN_S: Final = 0.01
"""How long a call that only begins something waits for it."""

_FLUSH_S: Final = 1.0
"""How long one call waits for answers to sent records."""

_STOPPING_S: Final = 10.0
"""How long a transaction under way is waited for once the exporter is to end; then the unit's next
owner aborts it."""


class UnitProducer:
    """See the module. Used by one thread. ``say`` gets a text with the reason for a wait. Raises
    KafkaException wherever the cluster refuses."""

    def __init__(
        self,
        export: Export,
        unit: int,
        topic: str,
        stop: threading.Event,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._say = say
        self._topic = topic
        self._stop = stop
        self._name = transactional_id(export, unit, 0)
        self._producers: list[Producer] = [
            producer_of(export, unit, number) for number in range(PRODUCERS)
        ]
        self._turn = 0
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._failed: KafkaError | None = None

    def fence(self) -> None:
        """Ends the transactions of earlier producers of the unit, and bars them: their marks are
        written when this is over. Raises Unavailable when asked to stop meanwhile."""
        # All are begun before one is waited for: the client asks for its coordinator every half a
        # second, and the cluster needs time to end open transactions.
        begun = [
            producer for producer in self._producers if not self._is_fenced(producer, _BEGIN_S)
        ]
        for producer in begun:
            while not self._is_fenced(producer, KAFKA_CALL_S):
                if self._stop.is_set():
                    raise Unavailable(f"asked to stop while {self._name} waited for its turn")
        failpoint("export.after_fencing")

    def _is_fenced(self, producer: Producer, wait_s: float) -> bool:
        """Begins or continues to bar the earlier producers; returns whether that is done within
        ``wait_s`` seconds."""
        try:
            _served(producer, producer.init_transactions, wait_s)
        except KafkaException as error:
            if verdict(found := error_of(error)) is not Verdict.RETRY or found.code() in (
                KafkaError._TRANSPORT,  # noqa: SLF001
                KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
            ):
                raise
            if wait_s > _BEGIN_S:
                self._say(f"waiting: the Kafka cluster: {words(found)}")
            return False
        return True

    @property
    def _producer(self) -> Producer:
        return self._producers[self._turn]

    def begin(self, records: Mapping[int, Sequence[OutRecord]]) -> None:
        """Begins a transaction and hands its records, by shard, to the client."""
        failpoint("export.before_begin")
        self._turn = (self._turn + 1) % PRODUCERS
        self._first, self._last, self._failed = {}, {}, None
        self._producer.begin_transaction()
        produce, topic, delivered = self._producer.produce, self._topic, self._delivered
        for of_shard in records.values():
            last = len(of_shard) - 1
            for number, (shard, added_id, key, value, shared, timestamp_ms) in enumerate(of_shard):
                headers: Headers = [(ADDED_ID, b"%d" % added_id), *shared]
                # Of the first and the last one only: a call back for each record would cost a third
                # of all.
                callback = delivered if number == 0 or number == last else None
                while True:
                    try:
                        # By position: by name the call costs a third more. `callback` and
                        # `on_delivery` are one to the client, but of two that are given, None or
                        # not, only the first one counts.
                        produce(topic, value, key, shard, callback, None, timestamp_ms, headers)
                        break
                    except BufferError:
                        # the client's queue is full: sent records leave it, or run into their
                        # time-out
                        _served(self._producer, self._producer.poll, 0.05)
        _served(self._producer, self._producer.poll, 0.0)
        failpoint("export.after_produce")

    def commit(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Commits the begun transaction; by partition, the offset after its last record. ``ends``:
        those before.

        Raises PartitionMoved, having aborted; Unavailable when asked to stop and the cluster does
        not answer.
        """
        deadline_s = None
        while _served(self._producer, self._producer.flush, _FLUSH_S):
            deadline_s = self._patience(deadline_s)
        if self._failed is not None:
            raise KafkaException(self._failed)
        for partition, offset in self._first.items():
            if offset < ends.get(partition, 0):
                self.abort()
                raise PartitionMoved(
                    f"partition {partition} gave offset {offset} to a record, and had records up to"
                    f" {ends[partition]} before"
                )
        failpoint("export.before_commit")
        while True:
            try:
                _served(self._producer, self._producer.commit_transaction, KAFKA_CALL_S)
                break
            except KafkaException as error:
                if verdict(error_of(error)) is not Verdict.RETRY:
                    raise
                deadline_s = self._patience(deadline_s)
        failpoint("export.after_commit")
        return {partition: offset + 1 for partition, offset in self._last.items()}

    def abort(self) -> None:
        """Aborts the begun transaction."""
        deadline_s = time.monotonic() + TRANSACTION_TIMEOUT_S
        while True:
            try:
                _served(self._producer, self._producer.abort_transaction, KAFKA_CALL_S)
            except KafkaException as error:
                if verdict(error_of(error)) is not Verdict.RETRY or time.monotonic() > deadline_s:
                    raise
            else:
                return

    def give_up(self) -> None:
        """Forgets unsent records; the producers are of no use from then on. The next ones abort
        their open transactions, or the broker does in time."""
        for producer in self._producers:
            producer.purge()
            with suppress(KafkaException):  # that which made it of no use
                _served(producer, producer.poll, 0.0)

    def _patience(self, deadline_s: float | None) -> float | None:
        """While the cluster does not answer: without end, but for an exporter that is to end."""
        self._say("waiting: the Kafka cluster has not yet acknowledged the records")
        if not self._stop.is_set():
            return None
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise Unavailable(
                "the cluster does not answer, and the exporter is to end: the transaction of"
                f" {self._name} is left open"
            )
        return deadline_s or time.monotonic() + _STOPPING_S

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = self._failed or error
            return
        partition, offset = message.partition() or 0, message.offset() or 0
        self._first.setdefault(partition, offset)
        self._last[partition] = offset


T = TypeVar("T")


def _served(producer: Producer, call: Callable[[float], T], wait_s: float) -> T:
    """Makes a call that serves the client's callbacks. Raises KafkaException.

    A producer that has become of no use, as one that was fenced has, raises the reason out of a
    callback. When another callback is served before the call ends, the reason is hidden as the
    cause of a SystemError, or lost behind one; then the producer is asked for it: it can do nothing
    any more but report it.
    """
    try:
        return call(wait_s)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        with suppress(SystemError):
            producer.abort_transaction(KAFKA_CALL_S)
        raise KafkaException(
            KafkaError(KafkaError._FAIL, f"the client failed and does not say why: {error}")  # noqa: SLF001
        ) from error
