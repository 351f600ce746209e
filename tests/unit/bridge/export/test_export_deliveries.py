"""A unit's producer and its deliveries: one error, or an offset that goes back, and nothing is
committed. The client is a value here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from cellfeed.bridge.export import unit_producer
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.records import OutRecord
from cellfeed.bridge.export.unit_producer import UnitProducer
from cellfeed.store.errors import PartitionMoved


class Message:
    def __init__(self, partition: int, offset: int) -> None:
        self._place = partition, offset

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]


class Client:
    """A producer of one transaction after another: ``offsets`` and ``errors`` are the broker's
    answers, in the order of the records."""

    def __init__(self) -> None:
        self.begun = self.committed = self.aborted = 0
        self.offsets: list[int] = []
        self.errors: list[KafkaError | None] = []
        self._answers: list[Callable[[], None]] = []

    def begin_transaction(self) -> None:
        self.begun += 1

    def produce(
        self, topic: str, value: Any, key: Any, partition: int, callback: Any, *_more: Any
    ) -> None:
        assert topic == "out"
        offset, error = self.offsets.pop(0), self.errors.pop(0) if self.errors else None
        if callback is not None:
            self._answers.append(lambda: callback(error, Message(partition, offset)))

    def poll(self, _wait_s: float) -> int:
        return 0

    def flush(self, _wait_s: float) -> int:
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()
        return 0

    def commit_transaction(self, _wait_s: float) -> None:
        self.committed += 1

    def abort_transaction(self, _wait_s: float) -> None:
        self.aborted += 1


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    made: list[Client] = []

    def producer_of(*_about: Any) -> Producer:
        made.append(Client())
        return cast("Producer", made[-1])

    monkeypatch.setattr(unit_producer, "producer_of", producer_of)
    monkeypatch.setattr(unit_producer, "transactional_id", lambda *_about: "unit-0")
    return made


@pytest.fixture
def producer(clients: list[Client]) -> UnitProducer:
    return UnitProducer(cast("Export", object()), 0, "out", threading.Event())


def records(count: int) -> dict[int, list[OutRecord]]:
    return {3: [OutRecord(3, added_id, b"key", b"value", [], 0) for added_id in range(count)]}


def send(
    producer: UnitProducer,
    clients: list[Client],
    offsets: list[int],
    errors: list[KafkaError | None] | None = None,
) -> Client:
    for client in clients:
        client.offsets, client.errors = list(offsets), list(errors or [])
    before = [client.begun for client in clients]
    producer.begin(records(len(offsets)))
    return next(
        client for client, begun in zip(clients, before, strict=True) if client.begun > begun
    )


def test_a_delivered_transaction_is_committed_and_reports_its_end(
    producer: UnitProducer, clients: list[Client]
) -> None:
    client = send(producer, clients, [7, 8, 9])
    assert producer.commit({3: 7}) == {3: 10}
    assert (client.committed, client.aborted) == (1, 0)


@pytest.mark.parametrize("failed", [0, 2])
def test_a_record_that_was_not_delivered_keeps_the_transaction_from_its_commit(
    producer: UnitProducer, clients: list[Client], failed: int
) -> None:
    errors: list[KafkaError | None] = [None, None, None]
    errors[failed] = KafkaError(KafkaError._MSG_TIMED_OUT, "not delivered")
    client = send(producer, clients, [7, 8, 9], errors)
    with pytest.raises(KafkaException, match="not delivered"):
        producer.commit({3: 7})
    assert client.committed == 0


def test_an_error_of_one_transaction_is_not_that_of_the_next(
    producer: UnitProducer, clients: list[Client]
) -> None:
    send(producer, clients, [7], [KafkaError(KafkaError._MSG_TIMED_OUT, "not delivered")])
    with pytest.raises(KafkaException):
        producer.commit({})
    send(producer, clients, [8])
    assert producer.commit({}) == {3: 9}


def test_an_offset_below_the_end_of_the_partition_aborts(
    producer: UnitProducer, clients: list[Client]
) -> None:
    client = send(producer, clients, [5, 6])
    with pytest.raises(
        PartitionMoved, match="gave offset 5 to a record, and had records up to 7 before"
    ):
        producer.commit({3: 7})
    assert (client.committed, client.aborted) == (0, 1)


def test_two_transactions_in_a_row_are_of_two_producers(
    producer: UnitProducer, clients: list[Client]
) -> None:
    assert send(producer, clients, [7]) is not send(producer, clients, [8])
