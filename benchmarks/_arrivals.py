"""The moments at which cells arrive at a process, by key, for figures of latency."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from confluent_kafka import Consumer, KafkaException, Message


class Arrivals:
    """Of one process. Sends ``"warmed up"`` with the first key, and all moments with the last."""

    def __init__(self, connection: Connection, expected: int) -> None:
        self._connection = connection
        self._expected = expected
        self._received: dict[str, float] = {}

    def note(self, key: str, now_s: float) -> None:
        """A key arrived; the first time counts."""
        self._received.setdefault(key, now_s)
        if len(self._received) == 1:
            self._connection.send("warmed up")
        if len(self._received) == self._expected:
            self._connection.send(self._received)


def send_arrivals(
    consumer: Consumer,
    connection: Connection,
    stop: Event,
    records: int,
    key_of: Callable[[Message], str],
) -> None:
    """Reads so many records of an assigned consumer and sends when each arrived. Ends when
    ``stop`` is set. Raises KafkaException."""
    received: dict[str, float] = {}
    for taken in range(records):
        while (message := consumer.poll(0.5)) is None and not stop.is_set():
            continue
        now_s = time.monotonic()
        if message is None:
            return
        if message.error():
            raise KafkaException(message.error())
        received[key_of(message)] = now_s
        if taken == 0:
            connection.send("warmed up")
    connection.send(received)
