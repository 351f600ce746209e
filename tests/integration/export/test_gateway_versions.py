"""Every version of every API that the gateway advertises is spoken: old clients get the same
answers as new ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.bridge.gateway.apis.advertised import APIS
from cellfeed.store.datastore import Datastore
from tests.support import raw_requests
from tests.support.gateway_samples import ALL_VERSIONS, sample
from tests.support.raw_requests import encoded
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS

pytestmark = pytest.mark.integration

CELLS = 40
OLD_AND_NEW_FETCHES = range(APIS[1].versions[0], APIS[1].versions[1] + 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("versions") / "store"
    with Datastore.open_embedded(directory) as datastore:
        datastore.put_cells(
            [
                (f"00000000-0000-4000-8000-{number:012x}", "BASE", 0, {"n": number})
                for number in range(CELLS)
            ]
        )
    return directory


@pytest.fixture(scope="module")
def gateway(store: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(
        store, store.parent / "gateway.log", compressions={"trips.BASE": "zstd"}
    ) as running:
        yield running


def ask(gateway: GatewayProcess, key: int, version: int, body: bytes) -> Any:
    return raw_requests.ask(gateway.port, key, version, body)


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_every_advertised_version_is_answered_by_its_own_schema(
    gateway: GatewayProcess, key: int, version: int, nulls: bool
) -> None:
    ask(gateway, key, version, sample(key, version, nulls=nulls)[1])


def fetched(gateway: GatewayProcess, version: int, topic: str) -> list[Any]:
    """The partitions of the topic, from their beginning."""
    [named] = [each for each in metadata(gateway).topics if each.name == topic]
    partitions = [
        {
            "partition": shard,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        for shard in range(SHARDS)
    ]
    values = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": named.topic_id, "partitions": partitions}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    answer = ask(gateway, 1, version, encoded(1, version, values))
    [found] = [each.partitions for each in answer.responses]
    return list(found)


@pytest.mark.parametrize("version", OLD_AND_NEW_FETCHES)
def test_every_version_of_fetch_gives_every_record(gateway: GatewayProcess, version: int) -> None:
    found = fetched(gateway, version, "trips")
    assert [(each.partition_index, each.error_code) for each in found] == [
        (shard, 0) for shard in range(SHARDS)
    ]
    assert sum(each.high_watermark for each in found) == CELLS
    for each in found:
        assert [record.offset for record in decode_record_batches(each.records or b"")] == list(
            range(each.high_watermark)
        )


@pytest.mark.parametrize("version", [4, 9, 10, 17])
def test_a_client_from_before_zstd_gets_an_error_and_never_unreadable_batches(
    gateway: GatewayProcess, version: int
) -> None:
    found = fetched(gateway, version, "trips.BASE")
    assert {each.error_code for each in found} == {0 if version >= 10 else 76}
    assert any(each.records for each in found) == (version >= 10)


@pytest.mark.parametrize("version", range(APIS[2].versions[0], APIS[2].versions[1] + 1))
@pytest.mark.parametrize(("timestamp", "offsets"), [(-1, CELLS), (-2, 0)])
def test_every_version_of_list_offsets_gives_both_ends(
    gateway: GatewayProcess, version: int, timestamp: int, offsets: int
) -> None:
    partitions = [
        {"partition_index": shard, "current_leader_epoch": -1, "timestamp": timestamp}
        for shard in range(SHARDS)
    ]
    values = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "trips", "partitions": partitions}],
        "timeout": 1000,
    }
    answer = ask(gateway, 2, version, encoded(2, version, values))
    [found] = [each.partitions for each in answer.topics]
    assert [each.error_code for each in found] == [0] * SHARDS
    assert sum(each.offset for each in found) == offsets


@pytest.mark.parametrize(
    ("timestamp", "error"),
    [((1 << 63) - 1, 0), (253_402_300_800_000, 0), (-(1 << 63), 35), (-6, 35)],
)
def test_a_moment_beyond_every_clock_is_answered_and_not_looked_up(
    gateway: GatewayProcess, timestamp: int, error: int
) -> None:
    values = {
        "replica_id": -1,
        "topics": [
            {"name": "trips", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}
        ],
    }
    [[found]] = [each.partitions for each in ask(gateway, 2, 1, encoded(2, 1, values)).topics]
    assert (found.error_code, found.offset) == (error, -1)


def metadata(gateway: GatewayProcess) -> Any:
    values = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return ask(gateway, 3, 12, encoded(3, 12, values))
