"""Declared views and ``@latest`` as other people's clients see them: over long stretches in which
nothing matches, and from the newest records to new ones."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from cellfeed.bridge.events.cloud_events import CONTENT_TYPE, envelope_of
from cellfeed.store.cells.cell import Triple
from cellfeed.store.datastore import Datastore
from tests.clients.test_java_tools import Java, java
from tests.support.drivers import Driver
from tests.support.kcat import needs_kcat
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS

pytestmark = pytest.mark.integration

__all__ = ["java"]

ROWS, REVISIONS = 250, 80
"""20,000 cells: rows are written again and again, each time whole, so only the last 250 cells are
newest ones."""

TIMEOUT_S = 60.0
FROM_START = dict.fromkeys(range(SHARDS), 0)
TOPICS = [
    {"name": "nothing", "filter": [{"field": "kind", "op": "=", "value": "card"}]},
    {"name": "newest", "latest": True, "format": "json"},
    {
        "name": "events",
        "column": "BASE",
        "filter": [{"field": "n", "op": "in", "values": [3, 4]}],
        "fields": ["n", "missing"],
        "format": "cloudevents",
    },
]


def rows() -> list[uuid.UUID]:
    """Some in every shard."""
    return [uuid.uuid5(uuid.NAMESPACE_OID, f"row {number}") for number in range(ROWS)]


@pytest.fixture(scope="module")
def many_revisions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("many-revisions")
    with Datastore.open_embedded(directory) as datastore:
        for revision in range(0, REVISIONS, 4):
            cells = [
                (row, "BASE", each, {"kind": "cash", "n": number})
                for each in range(revision, revision + 4)
                for number, row in enumerate(rows())
            ]
            for put in datastore.put_cells(cells):
                put.or_raise()
    return directory


@pytest.fixture(scope="module")
def gateway(
    many_revisions: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    with GatewayProcess(
        many_revisions, tmp_path_factory.mktemp("gateway") / "log", topics=TOPICS
    ) as running:
        yield running


@pytest.fixture(scope="module")
def ends(many_revisions: Path) -> dict[int, int]:
    with Datastore.open_embedded(many_revisions) as datastore:
        return {shard: head.watermark for shard, head in datastore.heads().items()}


@pytest.fixture(scope="module")
def newest(many_revisions: Path) -> set[tuple[int, int]]:
    """Partition and offset of the newest cell of each row."""
    with Datastore.open_embedded(many_revisions) as datastore:
        triples = [Triple(row.bytes, "BASE", REVISIONS - 1) for row in rows()]
        return {
            (found.shard, found.cell.added_id)
            for found in datastore.engine.get(triples)
            if found is not None
        }


def committed(gateway: GatewayProcess, group: str, topic: str) -> dict[int, int]:
    asked = ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, partition) for partition in range(SHARDS)]
    )
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    found = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    return {each.partition: each.offset for each in found.topic_partitions or ()}


def with_confluent(bootstrap: str, group: str, topic: str, ends: Mapping[int, int]) -> None:
    """librdkafka has no position before the first record of a partition, and no more than its last
    one's: the end of the partition is an event of its own."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    at_end: dict[int, int] = {}
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT_S
        while at_end != ends and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                error, partition, offset = message.error(), message.partition(), message.offset()
                assert error is not None, "nothing matches"
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                assert partition is not None
                assert offset is not None
                at_end[partition] = offset
        consumer.commit(
            offsets=[
                TopicPartition(topic, partition, offset) for partition, offset in at_end.items()
            ],
            asynchronous=False,
        )
    finally:
        consumer.close()


def with_kafka_python(bootstrap: str, group: str, topic: str, ends: Mapping[int, int]) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    partitions = {kafka.TopicPartition(topic, partition): end for partition, end in ends.items()}
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            assert not consumer.poll(timeout_ms=200), "nothing matches"
            if consumer.assignment() == set(partitions) and all(
                consumer.position(each) == end for each, end in partitions.items()
            ):
                break
        assert {
            each: consumer.highwater(each) - consumer.position(each) for each in partitions
        } == dict.fromkeys(partitions, 0), "the lag"
        consumer.commit()
    finally:
        consumer.close(autocommit=False)


def with_aiokafka(bootstrap: str, group: str, topic: str, ends: Mapping[int, int]) -> None:
    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        partitions = {
            aiokafka.TopicPartition(topic, partition): end for partition, end in ends.items()
        }
        await consumer.start()
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while time.monotonic() < deadline:
                assert not await consumer.getmany(timeout_ms=200), "nothing matches"
                if consumer.assignment() == set(partitions) and all(
                    [await consumer.position(each) == end for each, end in partitions.items()]
                ):
                    break
            assert {
                each: consumer.highwater(each) - await consumer.position(each)
                for each in partitions
            } == dict.fromkeys(partitions, 0), "the lag"
            await consumer.commit()
        finally:
            await consumer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("client", [with_confluent, with_kafka_python, with_aiokafka])
def test_a_group_reaches_the_end_of_a_view_without_matches_and_commits_the_offset(
    client: Callable[[str, str, str, Mapping[int, int]], None],
    gateway: GatewayProcess,
    ends: dict[int, int],
) -> None:
    assert sum(ends.values()) == ROWS * REVISIONS
    client(gateway.bootstrap, client.__name__, "nothing", ends)
    assert committed(gateway, client.__name__, "nothing") == ends


@needs_kcat
def test_kcat_reaches_the_end_of_views(
    gateway: GatewayProcess, newest: set[tuple[int, int]]
) -> None:
    for topic, wanted in (
        ("nothing", set()),
        ("newest", newest),
        ("trips@latest", newest),
        ("trips.BASE@latest", newest),
    ):
        command = [
            "kcat",
            "-b",
            gateway.bootstrap,
            "-C",
            "-t",
            topic,
            "-o",
            "beginning",
            "-e",
            "-q",
            "-f",
            "%p %o\n",
        ]
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        assert {(int(partition), int(offset)) for partition, offset in lines} == wanted
        assert len(lines) == len(wanted)


def test_java_takes_the_name_with_the_at_sign_and_commits_to_the_end(
    java: Java, gateway: GatewayProcess, newest: set[tuple[int, int]]
) -> None:
    arguments = (
        "--topic",
        "trips@latest",
        "--group-id",
        "java-latest",
        "--max-messages",
        str(ROWS),
        "--reset-policy",
        "earliest",
        "--verbose",
    )
    events = [
        json.loads(line)
        for line in java("VerifiableConsumer", gateway, *arguments).stdout.splitlines()
    ]
    assert {
        (each["partition"], each["offset"]) for each in events if each["name"] == "record_data"
    } == newest

    def lags(group: str, topic: str) -> list[str]:
        lines = java(
            "consumer.group.ConsumerGroupCommand",
            gateway,
            "--describe",
            "--group",
            group,
            check=False,
        ).stdout.splitlines()
        return [
            row[5]
            for row in (line.split() for line in lines if line.startswith(group))
            if row[1] == topic
        ]

    for without_records_ms in (
        8_000,
        40_000,
    ):
        # the tool commits when it ends, for want of records: on a busy machine before it has come
        # to the end
        java(
            "consumer.ConsoleConsumer",
            gateway,
            "--topic",
            "nothing",
            "--from-beginning",
            "--group",
            "java-nothing",
            "--timeout-ms",
            str(without_records_ms),
        )
        if lags("java-nothing", "nothing") == ["0"] * SHARDS:
            break
    assert lags("java-nothing", "nothing") == ["0"] * SHARDS
    assert lags("java-latest", "trips@latest") == ["0"] * SHARDS


def test_a_row_is_shown_once_with_its_highest_ref_key_wherever_that_lies_in_the_log(
    driver: Driver, tmp_path: Path
) -> None:
    written = [uuid.uuid4() for _ in range(40)]
    with (
        Datastore.open_embedded(tmp_path / "store") as datastore,
        GatewayProcess(tmp_path / "store", tmp_path / "gateway.log", topics=TOPICS) as running,
    ):
        for ref_keys, newest in (((1, 9, 5), 9), ((0,), 9), ((10, 30, 20), 30)):
            for result in datastore.put_cells(
                [(row, "BASE", ref_key, {"n": ref_key}) for ref_key in ref_keys for row in written]
            ):
                result.or_raise()
            values = [
                json.loads(record.value or b"")
                for record in driver.read(running.bootstrap, "newest", FROM_START, len(written))
            ]
            assert sorted((each["row_key"], each["ref_key"]) for each in values) == sorted(
                (str(row), newest) for row in written
            )


class Following(Protocol):
    """One consumer of one partition from its beginning on."""

    def offsets(self, count: int) -> list[int]: ...

    def close(self) -> None: ...


class FollowingConfluent:
    def __init__(self, bootstrap: str, topic: str, shard: int) -> None:
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(topic, shard, 0)])

    def offsets(self, count: int) -> list[int]:
        found: list[int] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            for message in self._consumer.consume(count - len(found), 0.2):
                assert message.error() is None
                found.append(message.offset() or 0)
        return found

    def close(self) -> None:
        self._consumer.close()


class FollowingKafkaPython:
    def __init__(self, bootstrap: str, topic: str, shard: int) -> None:
        self._consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        self._consumer.assign([kafka.TopicPartition(topic, shard)])
        self._consumer.seek(kafka.TopicPartition(topic, shard), 0)

    def offsets(self, count: int) -> list[int]:
        found: list[int] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += [
                each.offset
                for records in self._consumer.poll(
                    timeout_ms=200, max_records=count - len(found)
                ).values()
                for each in records
            ]
        return found

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class FollowingAiokafka:
    def __init__(self, bootstrap: str, topic: str, shard: int) -> None:
        self._runner = asyncio.Runner()

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, enable_auto_commit=False
            )
            await consumer.start()
            consumer.assign([aiokafka.TopicPartition(topic, shard)])
            consumer.seek(aiokafka.TopicPartition(topic, shard), 0)
            return consumer

        self._consumer = self._runner.run(start())

    def offsets(self, count: int) -> list[int]:
        async def take() -> list[int]:
            found: list[int] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline:
                taken = await self._consumer.getmany(timeout_ms=200, max_records=count - len(found))
                found += [each.offset for records in taken.values() for each in records]
            return found

        return self._runner.run(take())

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


@pytest.mark.parametrize("client", [FollowingConfluent, FollowingKafkaPython, FollowingAiokafka])
def test_a_consumer_of_latest_continues_with_every_later_cell(
    client: Callable[[str, str, int], Following], tmp_path: Path
) -> None:
    """The same consumer over its "now": a merged body comes whole, with late cells too, and every
    later reader is shown the newest one."""
    row = uuid.uuid4()
    with ExitStack() as opened:
        datastore = opened.enter_context(Datastore.open_embedded(tmp_path / "store"))
        running = opened.enter_context(
            GatewayProcess(tmp_path / "store", tmp_path / "gateway.log", topics=TOPICS)
        )

        def put(*ref_keys: int) -> int:
            results = [
                result.or_raise()
                for result in datastore.put_cells(
                    [(row, "BASE", ref_key, {}) for ref_key in ref_keys]
                )
            ]
            return results[0].shard or 0

        shard = put(0, 1, 4, 3, 2)
        following = client(running.bootstrap, "newest", shard)
        opened.callback(following.close)
        assert following.offsets(1) == [2]
        for number in range(3):
            first = 5 + 5 * number
            put(first, first + 1, first + 4, first + 3, first + 2)
            assert following.offsets(5) == list(range(first, first + 5))
        later = client(running.bootstrap, "newest", shard)
        opened.callback(later.close)
        assert later.offsets(1) == [17]


def test_cloud_events_of_a_projection_carry_their_content_type(gateway: GatewayProcess) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": gateway.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition("events", partition, 0) for partition in range(SHARDS)])
        messages: list[confluent_kafka.Message] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(messages) < 2 * REVISIONS and time.monotonic() < deadline:
            messages += consumer.consume(500, 0.2)
    finally:
        consumer.close()
    assert len(messages) == 2 * REVISIONS
    for message in messages:
        envelope = json.loads(envelope_of(message.value() or b""))
        assert message.headers() == [("content-type", CONTENT_TYPE)]
        assert (message.partition(), message.offset()) == (envelope["shard"], envelope["added_id"])
        assert envelope["body"] in ({"n": 3}, {"n": 4})


def test_tools_list_virtual_topics_and_see_which_are_compacted(
    gateway: GatewayProcess,
) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    assert set(admin.list_topics(timeout=TIMEOUT_S).topics) == {
        "trips",
        "trips.BASE",
        "nothing",
        "newest",
        "events",
    }
    for topic, policy in (
        ("trips", "delete"),
        ("nothing", "delete"),
        ("newest", "compact"),
        ("trips@latest", "compact"),
    ):
        [described] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        assert described.result(TIMEOUT_S)["cleanup.policy"].value == policy
    # A column that may come is waited for, with and without the suffix of its name; a text that is
    # no name is refused.
    errors = {
        "trips.SOON": "UNKNOWN_TOPIC_OR_PART",
        "trips.SOON@latest": "UNKNOWN_TOPIC_OR_PART",
        "trips@first": "TOPIC_EXCEPTION",
    }
    for topic, error in errors.items():
        told = admin.list_topics(topic, TIMEOUT_S).topics[topic].error
        assert told is not None
        assert told.name() == error


def test_the_offset_of_a_moment_is_found_in_every_view(
    driver: Driver, gateway: GatewayProcess, ends: dict[int, int]
) -> None:
    assert driver.offsets_at(gateway.bootstrap, "nothing", 0, SHARDS) == FROM_START
    moment = int(time.time() * 1000) + 3_600_000
    assert driver.offsets_at(gateway.bootstrap, "newest", moment, SHARDS) == dict.fromkeys(ends)
