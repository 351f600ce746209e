"""Steps of tests of the exporter: put cells, run exporters as processes, read partitions, compare
them with the log (I15)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4, uuid5

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.events.messages import header_values
from cellfeed.bridge.events.record_headers import added_id_of
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_clients import consumer_of
from cellfeed.servers.life import LOOPBACK
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
NAMESPACE = UUID("6c1a2d0e-94a7-4a0f-8a39-52f2a7a1c001")
LEASE_S = 1.0
WAIT_S = 90.0
"""Far more than anything here takes on a busy machine."""


READS_ALL = {"isolation.level": "read_uncommitted"}


class Copied(NamedTuple):
    """A record as a reader of committed records gets it."""

    offset: int
    added_id: int | None
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    timestamp_ms: int


def export_to(kafka: Kafka, **more: Any) -> Export:
    """An export with a name, and so a topic and transactional ids, of its own."""
    name = more.pop("name", f"trips-{uuid4().hex[:8]}")
    settings = {
        "name": name,
        "bootstrap": kafka.bootstrap,
        "topic": name,
        "lease_s": LEASE_S,
        **more,
    }
    return msgspec.convert(settings, Export).check()


def put(
    datastore: Datastore, count: int, *, first: int = 0, column: str = "BASE", size: int = 0
) -> None:
    """Cells that differ in everything."""
    numbers = range(first, first + count)
    more = {"text": "x" * size} if size else {}
    cells = [
        (
            uuid5(NAMESPACE, f"{column}/{number}"),
            column,
            number % 3 + 1,
            {"n": number, "kind": number % 2, **more},
        )
        for number in numbers
    ]
    for start in range(0, count, 2_000):
        for result in datastore.put_cells(cells[start : start + 2_000]):
            result.or_raise()


class Writer(threading.Thread):
    """Puts small batches until it is stopped."""

    def __init__(self, datastore: Datastore, number: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self._datastore = datastore
        self._first = (number + 1) * 1_000_000
        self._stopping = threading.Event()
        self.cells = 0

    def run(self) -> None:
        while not self._stopping.is_set():
            put(self._datastore, 20, first=self._first + self.cells)
            self.cells += 20
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopping.set()
        self.join(WAIT_S)


@contextmanager
def writing(datastore: Datastore, writers: int = 2) -> Iterator[Sequence[Writer]]:
    """Writers at work during the block."""
    threads = [Writer(datastore, number) for number in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for thread in threads:
            thread.stop()


class Exporter:
    """An exporter as a process. Its log is ``log``. ``url``: of a store that is not the embedded
    one in ``store``, beside which the log is. ``look_s``: the least time that a look at the logs
    takes.
    """

    def __init__(
        self,
        store: Path,
        name: str,
        shards: int,
        exports: Sequence[Export],
        coordination: str = "store",
        failpoints: str = "",
        url: str | None = None,
        look_s: float = 0.0,
    ) -> None:
        self.name = name
        self.log = store.parent / f"{name}.log"
        self._arguments = [
            url or str(store),
            name,
            str(shards),
            msgspec.json.encode(list(exports)).decode(),
            coordination,
            str(look_s),
        ]
        self._failpoints = failpoints
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.export_process", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "CELLFEED_FAILPOINTS": self._failpoints},
            )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def said(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def wait_killed(self) -> None:
        """Until a failpoint has killed it."""
        assert self.process.wait(WAIT_S) == -signal.SIGKILL, self.log.read_text()[-2_000:]

    def drain(self) -> None:
        """As an operator ends it."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_S) == 0, self.log.read_text()[-2_000:]
        assert self.said("drained")

    def kill(self) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(WAIT_S)


def pause(exporter: Exporter, datastore: Datastore) -> None:
    """SIGSTOP, not while it holds the embedded state's write lock, which would stop everybody."""

    def paused_without_the_lock() -> bool:
        exporter.signal(signal.SIGSTOP)
        try:
            datastore.state.commit({"tests/pause": b""})
        except Unavailable:
            exporter.signal(signal.SIGCONT)
            return False
        return True

    wait_until(paused_without_the_lock, f"{exporter.name} is paused", WAIT_S)


@contextmanager
def exporters(*running: Exporter) -> Iterator[None]:
    """Kills the processes that still run at the end."""
    try:
        yield
    finally:
        for each in running:
            each.kill()


def ends(datastore: Datastore) -> dict[int, int]:
    return {shard: head.watermark for shard, head in datastore.heads().items()}


def caught_up(datastore: Datastore, coordinator: Coordinator, export: Export) -> bool:
    """Whether every shard's saved offset is the end of its log."""
    try:
        saved = {
            shard: each.offset
            for (_, shard), each in coordinator.fetch_offsets(export.group).items()
        }
    except Unavailable:
        return False
    return all(saved.get(shard) == end for shard, end in ends(datastore).items())


def wait_marked(export: Export, partitions: int) -> None:
    """Until every transaction has its marks: a broker answers a commit before it has written them,
    and readers of commits see its records only then."""
    with (
        closing(consumer_of(export)) as committed,
        closing(
            Consumer({"bootstrap.servers": export.bootstrap, "group.id": "ends"} | READS_ALL)
        ) as everything,
    ):
        for partition in range(partitions):
            place = TopicPartition(export.topic or "", partition)
            wait_until(
                lambda place=place: (
                    committed.get_watermark_offsets(place, timeout=WAIT_S)
                    == everything.get_watermark_offsets(place, timeout=WAIT_S)
                ),  # type: ignore[misc]
                f"no transaction is open in {place.topic}/{partition}",
                WAIT_S,
            )


def wait_caught_up(datastore: Datastore, coordinator: Coordinator, export: Export) -> None:
    """Until every cell has been exported, and readers of commits see it."""
    wait_until(
        lambda: caught_up(datastore, coordinator, export),
        f"{export.name} is at the ends of the logs",
        WAIT_S,
    )
    wait_marked(export, datastore.shards)


def export_everything(datastore: Datastore, store: Path, name: str, export: Export) -> Exporter:
    """An exporter that comes to the ends of the logs of the embedded datastore in ``store``, and is
    ended as an operator ends it."""
    exporter = Exporter(store, name, datastore.shards, [export])
    with exporters(exporter), closing(StoreCoordinator(datastore.state)) as coordinator:
        wait_caught_up(datastore, coordinator, export)
        exporter.drain()
    return exporter


def read_topic(export: Export, partitions: int) -> dict[int, list[Copied]]:
    """Every committed record, by partition."""
    consumer = consumer_of(export)
    found: dict[int, list[Copied]] = {partition: [] for partition in range(partitions)}
    try:
        topic = export.topic or ""
        consumer.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
        )
        unread, deadline_s = set(range(partitions)), time.monotonic() + WAIT_S
        while unread:
            assert time.monotonic() < deadline_s, (
                f"partitions {sorted(unread)} of {topic} could not be read"
            )
            for message in consumer.consume(1_000, timeout=0.5):
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    unread.discard(message.partition())
                    continue
                headers = header_values(message)
                found[message.partition() or 0].append(
                    Copied(
                        message.offset() or 0,
                        added_id_of(headers.items()),
                        message.key(),
                        message.value(),
                        headers,
                        message.timestamp()[1],
                    )
                )
    finally:
        consumer.close()
    return found


def check_equal(
    datastore: Datastore, export: Export, *, without: Set[tuple[int, int]] = frozenset()
) -> int:
    """I15: each partition is its shard's log, in order, nothing twice, up to its end; ``without``
    cells that were parked. How many records there are."""
    from cellfeed.bridge.events.record_headers import LeaderEpochs
    from cellfeed.bridge.events.registry import envelope_schema_id
    from cellfeed.bridge.export.records import RecordEncoder

    encoder = RecordEncoder(export, datastore.name, envelope_schema_id())
    records = 0
    for partition, copied in read_topic(export, datastore.shards).items():
        cells, location = [], 0
        while piece := datastore.engine.scan(partition, location, 10_000):
            cells += piece
            location = piece[-1].added_id + 1
        epochs = LeaderEpochs(datastore.engine.leader_epochs(partition), 0)
        wanted = [
            (each.added_id, each.key, each.value, dict(each.headers), each.timestamp_ms)
            for each in encoder.encode(partition, cells, epochs).records
            if (partition, each.added_id) not in without
        ]
        got = [
            (each.added_id, each.key, each.value, each.headers, each.timestamp_ms)
            for each in copied
        ]
        ids, wanted_ids = [each[0] for each in got], [each[0] for each in wanted]
        differs_at = next(
            (
                place
                for place, pair in enumerate(zip(ids, wanted_ids, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(ids), len(wanted_ids)),
        )
        around = slice(max(0, differs_at - 3), differs_at + 5)
        assert ids == wanted_ids, (
            f"partition {partition}: {len(ids)} records of {len(wanted_ids)}, from {differs_at} on"
            f" {ids[around]}, not {wanted_ids[around]}"
        )
        assert got == wanted, f"partition {partition}"
        records += len(got)
    return records


def kafka_admin(kafka: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})


def wait_kafka(kafka: Kafka) -> None:
    """Until a broker that was started again knows its topics."""
    admin = kafka_admin(kafka)
    wait_until(lambda: bool(_brokers(admin)), f"the broker at {LOOPBACK} answers", WAIT_S)


def _brokers(admin: AdminClient) -> dict[int, Any]:
    try:
        return dict(admin.list_topics(timeout=2.0).brokers)
    except Exception:
        return {}


def offsets_json(coordinator: Coordinator, export: Export) -> str:
    """For a failure's message."""
    return json.dumps(
        {
            f"{topic}/{shard}": each.offset
            for (topic, shard), each in coordinator.fetch_offsets(export.group).items()
        }
    )
