"""kcat (librdkafka's command line) against a running gateway."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from tests.support.kcat import needs_kcat
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, Received

pytestmark = [pytest.mark.integration, needs_kcat]

TIMEOUT_S = 60
# Lengths instead of separators: a value may hold any byte.
FORMAT = "%p %o %T %K %S %k%s"


def kcat(
    gateway: GatewayProcess, *arguments: str, stdin: bytes = b"", check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    command = ["kcat", "-b", gateway.bootstrap, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert not check or done.returncode == 0, done.stderr.decode()
    return done


def parsed(output: bytes) -> list[Received]:
    """The records that kcat wrote in FORMAT."""
    records = []
    while output:
        partition, offset, timestamp, key_size, size, rest = output.split(b" ", 5)
        key_end, end = int(key_size), int(key_size) + int(size)
        records.append(
            Received(int(partition), int(offset), int(timestamp), rest[:key_end], rest[key_end:end])
        )
        output = rest[end:]
    return records


@pytest.mark.parametrize("topic", ["trips", "trips.BASE", "trips.NOTES", "trips.RARE"])
def test_a_topic_is_read_whole(
    gateway: GatewayProcess, expected: dict[str, list[Received]], topic: str
) -> None:
    done = kcat(gateway, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", FORMAT)
    assert sorted(parsed(done.stdout)) == expected[topic]


def test_one_partition_is_read_from_an_offset(
    gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    done = kcat(gateway, "-C", "-t", "trips", "-p", "5", "-o", "77", "-e", "-q", "-f", FORMAT)
    assert parsed(done.stdout) == [
        each for each in expected["trips"] if each.partition == 5 and each.offset >= 77
    ]


def test_reading_starts_at_a_timestamp(
    gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    moments = sorted({each.timestamp_ms for each in expected["trips"]})
    moment = moments[len(moments) // 2]
    done = kcat(gateway, "-C", "-t", "trips", "-o", f"s@{moment}", "-e", "-q", "-f", FORMAT)
    assert sorted(parsed(done.stdout)) == [
        each for each in expected["trips"] if each.timestamp_ms >= moment
    ]


def test_a_group_resumes_from_its_commit_after_the_gateway_is_killed(
    own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    arguments = (
        "-q",
        "-e",
        "-f",
        FORMAT,
        "-X",
        "auto.offset.reset=earliest",
        "-G",
        "kcat-group",
        "trips.NOTES",
    )
    first = parsed(kcat(own_gateway, *arguments).stdout)
    own_gateway.kill()
    new = uuid.uuid4()
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        put = datastore.put_cell(new, "NOTES", 1, {"late": True})
        own_gateway.start()
        second = parsed(kcat(own_gateway, *arguments).stdout)
        everything = [
            (shard, cell.added_id)
            for shard in range(SHARDS)
            for cell in datastore.engine.scan(shard, 0, 10_000)
            if cell.column_name == "NOTES"
        ]
    assert [(each.partition, each.offset) for each in second] == [(put.shard, put.added_id)]
    assert sorted((each.partition, each.offset) for each in first + second) == everything


def test_metadata_lists_the_topics_with_a_partition_per_shard(gateway: GatewayProcess) -> None:
    listed = json.loads(kcat(gateway, "-L", "-J").stdout)
    assert {topic["topic"]: len(topic["partitions"]) for topic in listed["topics"]} == {
        "trips": SHARDS,
        "trips.BASE": SHARDS,
        "trips.NOTES": SHARDS,
        "trips.RARE": SHARDS,
    }


def test_an_unknown_topic_gets_the_unknown_topic_error(gateway: GatewayProcess) -> None:
    done = kcat(gateway, "-C", "-t", "trips.NO_SUCH", "-o", "beginning", "-e", check=False)
    assert done.returncode != 0
    assert b"Unknown topic" in done.stderr


def test_writes_are_refused_with_the_matching_error(gateway: GatewayProcess) -> None:
    done = kcat(gateway, "-P", "-t", "trips", stdin=b"a value", check=False)
    assert done.returncode != 0
    assert b"Topic authorization failed" in done.stderr
