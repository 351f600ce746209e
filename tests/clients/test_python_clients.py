"""confluent-kafka (librdkafka), aiokafka and kafka-python against a running gateway."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from tests.support.drivers import Driver
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, Received

pytestmark = pytest.mark.integration

FROM_START = dict.fromkeys(range(SHARDS), 0)


@pytest.mark.parametrize("topic", ["trips", "trips.BASE", "trips.NOTES", "trips.RARE"])
def test_a_topic_is_read_whole_by_assignment(
    driver: Driver, gateway: GatewayProcess, expected: dict[str, list[Received]], topic: str
) -> None:
    received = driver.read(gateway.bootstrap, topic, FROM_START, len(expected[topic]))
    assert sorted(received) == expected[topic]


def test_records_of_a_partition_arrive_in_order(
    driver: Driver, gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    received = driver.read(
        gateway.bootstrap,
        "trips",
        {3: 0, 9: 0},
        sum(each.partition in (3, 9) for each in expected["trips"]),
    )
    for partition in (3, 9):
        assert [each for each in received if each.partition == partition] == [
            each for each in expected["trips"] if each.partition == partition
        ]


def test_reading_starts_in_the_middle_of_a_block(
    driver: Driver, gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    starts = {partition: 17 * partition % 101 for partition in range(SHARDS)}
    wanted = [each for each in expected["trips"] if each.offset >= starts[each.partition]]
    assert sorted(driver.read(gateway.bootstrap, "trips", starts, len(wanted))) == wanted


def test_a_group_resumes_from_its_commit_after_the_gateway_is_killed(
    driver: Driver, own_gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    first = driver.read_in_group(own_gateway.bootstrap, "trips.BASE", "billing", 1_500)
    before = own_gateway.process
    own_gateway.kill()
    own_gateway.start()
    assert own_gateway.process.pid != before.pid
    second = driver.read_in_group(
        own_gateway.bootstrap, "trips.BASE", "billing", len(expected["trips.BASE"]) - 1_500
    )
    # The stores of two tests hold the same cells put at different moments.
    assert sorted(each[:2] + each[3:4] for each in first + second) == [
        each[:2] + each[3:4] for each in expected["trips.BASE"]
    ]


def test_offsets_by_timestamp_are_the_first_at_or_after_it(
    driver: Driver, gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    records = expected["trips"]
    moments = sorted({each.timestamp_ms for each in records})
    for moment in (0, moments[0], moments[len(moments) // 2], moments[-1], moments[-1] + 1):
        wanted = {
            partition: min(
                (
                    each.offset
                    for each in records
                    if each.partition == partition and each.timestamp_ms >= moment
                ),
                default=None,
            )
            for partition in range(SHARDS)
        }
        assert driver.offsets_at(gateway.bootstrap, "trips", moment, SHARDS) == wanted


@pytest.mark.parametrize("topic", ["trips", "trips.BASE"])
def test_a_waiting_consumer_is_woken_by_a_new_cell(
    driver: Driver, own_gateway: GatewayProcess, tmp_path: Path, topic: str
) -> None:
    row_key = uuid.uuid4()
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        starts = {shard: head.watermark for shard, head in datastore.heads().items()}
        put: list[int] = []

        def put_one() -> None:
            put.append(datastore.put_cell(row_key, "BASE", 0, {"new": True}).added_id or 0)

        timer = threading.Timer(1.0, put_one)
        # The fetches wait for half a minute when nothing wakes them, and the client gives up
        # before.
        [received] = driver.read(own_gateway.bootstrap, topic, starts, 1, ready=timer.start)
        timer.join()
    assert [received.offset] == put
    assert received.key == str(row_key).encode()


def test_writes_are_refused_with_the_matching_error(
    driver: Driver, gateway: GatewayProcess
) -> None:
    assert driver.produce(gateway.bootstrap, "trips") in (
        "TOPIC_AUTHORIZATION_FAILED",
        "TopicAuthorizationFailedError",
    )
