"""The records that Kafka clients and an exported topic get of a shard that moves: the same records,
offsets and leader epochs as if it had stayed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

import confluent_kafka
import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.verify import verify_export
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.stored_columns import Settings
from cellfeed.bridge.typed.versions import register
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from tests.support import raw_requests
from tests.support.export_steps import check_equal, export_to, wait_caught_up
from tests.support.local_kafka import Kafka
from tests.support.mariadb_cluster import TestCluster
from tests.support.move_steps import SHARD, cells, gateway, move, open_engine, shown, writing
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

SCHEMA = body_schema(
    json.dumps({"type": "record", "name": "Numbered", "fields": [{"name": "n", "type": "long"}]})
)
OFFSET_FOR_LEADER_EPOCH = 23
TYPED, ENVELOPES, LATEST = "trips.BASE", "trips", "trips@latest"


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


class Record(NamedTuple):
    offset: int
    leader_epoch: int | None
    key: bytes | None
    value: bytes | None


@contextmanager
def own_gateway(clusters: dict[str, TestCluster], name: str) -> Iterator[int]:
    """A gateway with an engine of its own, as another process has it; its port."""
    with (
        Datastore(open_engine(clusters)) as datastore,
        closing(StoreCoordinator(datastore.state)) as coordinator,
        gateway(datastore, coordinator, name, "avro") as bootstrap,
    ):
        yield int(bootstrap.rpartition(":")[2])


def records(port: int, topic: str, count: int) -> list[Record]:
    """So many of the shard that moves, from its beginning, read by a client of its own from that
    gateway."""
    found: list[Record] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "reads",
            "auto.offset.reset": "earliest",
        }
    )
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(topic, SHARD, 0)])

        def come() -> bool:
            for message in consumer.consume(500, timeout=0.2):
                assert message.error() is None, message.error()
                found.append(
                    Record(
                        message.offset() or 0,
                        message.leader_epoch(),
                        message.key(),
                        message.value(),
                    )
                )
            return len(found) >= count

        wait_until(come, f"{count} records of {topic}")
    return found


def end_of(port: int, topic: str, epoch: int, current: int) -> tuple[int, int]:
    """The answer of OffsetForLeaderEpoch: error code and end offset."""
    partition = {"partition": SHARD, "current_leader_epoch": current, "leader_epoch": epoch}
    body = raw_requests.encoded(
        OFFSET_FOR_LEADER_EPOCH,
        4,
        {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]},
    )
    [told] = raw_requests.ask(port, OFFSET_FOR_LEADER_EPOCH, 4, body).topics[0].partitions
    return int(told.error_code), int(told.end_offset)


def test_gateways_give_the_same_records_and_epochs_from_kept_blocks_and_from_each_cluster(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    register(engine.state, "BASE", SCHEMA, Settings())
    engine.put(cells(1, 300))
    shown(engine, 300)
    with ExitStack() as stack:
        old = stack.enter_context(own_gateway(clusters, "old"))
        before = {topic: records(old, topic, 300) for topic in (TYPED, ENVELOPES)}
        assert [each.offset for each in before[TYPED]] == list(range(300))
        assert {each.leader_epoch for each in before[TYPED]} == {0}
        assert before[TYPED][0].value != before[ENVELOPES][0].value
        ends = {0: 300, 1: 340, 2: 380}
        for epoch, to in ((1, "c2"), (2, "c1")):
            move(clusters, engine, to)
            engine.put(cells(1 + epoch, 40))
            shown(engine, ends[epoch])
        new = stack.enter_context(own_gateway(clusters, "new"))
        for topic in (TYPED, ENVELOPES):
            for port in (old, new):
                after = records(port, topic, 380)
                assert [each._replace(leader_epoch=0) for each in after[:300]] == before[topic]
                assert [each.offset for each in after] == list(range(380))
                # A batch has the epoch in which it was encoded: never one before that in which its
                # cells were written, nor one that is still to come.
                written = [0] * 300 + [1] * 40 + [2] * 40
                assert all(
                    epoch <= (each.leader_epoch or 0) <= 2
                    for epoch, each in zip(written, after, strict=True)
                )
                assert {epoch: end_of(port, topic, epoch, 2) for epoch in ends} == {
                    epoch: (0, end) for epoch, end in ends.items()
                }
                assert end_of(port, topic, 0, 1)[0] == 74, (
                    "FENCED_LEADER_EPOCH for a client that has not heard of the move"
                )
        assert [each.offset for each in records(new, LATEST, 380)] == list(range(380))


def test_an_export_continues_over_moves_there_and_back(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, kafka: Kafka
) -> None:
    export, stop, failed = export_to(kafka, units=2), threading.Event(), list[BaseException]()
    with (
        Datastore(open_engine(clusters)) as exported,
        Datastore(open_engine(clusters)) as datastore,
        closing(StoreCoordinator(exported.state)) as coordinator,
    ):

        def run() -> None:
            try:
                run_exporter([export], exported, coordinator, "exporter", stop)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="exporter")
        thread.start()
        try:
            with writing(datastore) as writer:
                for target in ("c2", "c1"):
                    move(clusters, engine, target)
                    writer.goes_on()
            wait_caught_up(datastore, coordinator, export)
        finally:
            stop.set()
            thread.join(90)
        assert failed == []
        assert check_equal(datastore, export) == len(writer.acknowledged)
        assert all(
            each.equal and each.partition_digest == each.log_digest
            for each in verify_export(export, datastore)
        )
