"""The threads that run while a fault happens: writers through the HTTP client, and a Kafka consumer
that follows every partition from offset 0."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid5

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from cellfeed.bridge.events.envelope import decode_envelope
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.cell import Cell
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.client import Client
from tests.faults.invariants import Seen
from tests.faults.ledger import Ledger
from tests.support.kafka_messages import place_of

NAMESPACE = UUID("5b3f3a0e-7a05-4a0a-8f59-6b5d0c1f2e77")


def trip_body(number: int) -> dict[str, object]:
    """A BASE cell as the billing trigger reads it: two in three by card, so charges and settlements
    both happen."""
    fare = 500 + number % 4000
    return {
        "pickup": "2019-03-23 20:21:09",
        "dropoff": "2019-03-23 20:27:24",
        "passengers": 1,
        "distance_miles": 1.6,
        "fare_cents": fare,
        "tip_cents": 100,
        "tolls_cents": 0,
        "total_cents": fare + 100,
        "color": "yellow",
        "payment": "cash" if number % 3 == 0 else "credit card",
        "pickup_zone": "Lenox Hill West",
        "dropoff_zone": "Yorkville West",
        "pickup_borough": "Manhattan",
        "dropoff_borough": "Manhattan",
    }


class Writers:
    """Threads that put one BASE cell after another, each at its own pace, and write down the
    answers. Every put is tried until it is acknowledged or the run ends, with the same body: a
    careful caller does so with ``unknown``."""

    def __init__(
        self,
        urls: Sequence[str],
        ledger: Ledger,
        seed: int,
        pause_s: float,
        threads: int = 4,
        access: Mapping[str, Any] = {},
    ) -> None:
        self._client = Client(list(urls), "trips", timeout_s=5.0, **access)
        self._ledger = ledger
        self._seed = seed
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(number,), daemon=True)
            for number in range(threads)
        ]
        self.longest_call_s = 0.0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        self._client.close()

    def _write(self, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            row_key = uuid5(NAMESPACE, f"{self._seed}-{writer}-{number}")
            body = trip_body(number)
            put = self._ledger.begin(row_key, "BASE", 1, canonical_json.canonical(body))
            while not self._stop.is_set():
                started_s = time.monotonic()
                with suppress(CellfeedError):
                    result = self._client.put_cell(row_key, "BASE", 1, body)
                    self._ledger.answer(put, result.outcome.value, result.shard, result.added_id)
                self.longest_call_s = max(self.longest_call_s, time.monotonic() - started_s)
                if put.acknowledged:
                    break
                time.sleep(0.05)
            time.sleep(self._pause_s)


class KafkaReader(threading.Thread):
    """A stock consumer by assignment on every partition from the beginning. It remembers each
    record in the order in which it came. ``more``: settings of the client."""

    def __init__(
        self, bootstrap: str, topic: str, shards: int, more: Mapping[str, Any] = {}
    ) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "fault-run-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 500,
                "fetch.wait.max.ms": 100,
                "log_level": 0,  # the run itself kills gateways, so that is no news
                **more,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, shard, OFFSET_BEGINNING) for shard in range(shards)]
        )
        self._ended = threading.Event()
        self.read: dict[int, list[Seen]] = {shard: [] for shard in range(shards)}
        self.errors: list[str] = []

    def run(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(500, 0.1):
                error = message.error()
                if error is not None:
                    # A killed gateway shows itself by transport errors; anything else (an offset
                    # out of range, say) is a finding.
                    if error.code() not in (
                        KafkaError._TRANSPORT,
                        KafkaError._ALL_BROKERS_DOWN,
                        KafkaError._RESOLVE,
                        KafkaError._TIMED_OUT,
                    ):
                        self.errors.append(str(error))
                    continue
                event = decode_envelope(message.value())
                partition, offset = place_of(message)
                if (event.shard, event.added_id) != (partition, offset):
                    self.errors.append(
                        f"{partition}/{offset} carries {event.shard}/{event.added_id}"
                    )
                self.read[partition].append(
                    Seen(
                        event.added_id,
                        UUID(bytes=event.row_key),
                        event.column_name,
                        event.ref_key,
                        event.body_json,
                    )
                )

    def wait_for(self, ends: dict[int, int], timeout_s: float) -> bool:
        """Waits until every partition was read up to its end; False when the time ran out."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if all(
                len(self.read[shard]) and self.read[shard][-1].added_id + 1 >= end
                for shard, end in ends.items()
                if end
            ):
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        self._ended.set()
        if self.ident is not None:
            self.join(10)
        self._consumer.close()


def seen_cell(cell: Cell) -> Seen:
    """A cell of the store's API as the invariants take it."""
    return Seen(cell.added_id, cell.row_key, cell.column_name, cell.ref_key, cell.body_json)


def read_log(client: Client) -> dict[int, list[Seen]]:
    """Every shard's log through the API, from 0 to its end."""
    log: dict[int, list[Seen]] = {}
    for shard in range(client.shards):
        log[shard], location = [], 0
        while (piece := client.get_cells_for_shard(shard, location, 5000)).cells:
            log[shard] += map(seen_cell, piece.cells)
            location = piece.next_location
    return log
