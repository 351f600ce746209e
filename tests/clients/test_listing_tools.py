"""Tools that list a cluster and read it, by other people, as their users run them: Kaskade (a
terminal interface), kafkatop (lag of groups), kafka-console."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients.grid.builds import Unavailable
from tests.clients.grid.table import GUIDE
from tests.clients.tools.builds import TOOLS, node_tools, pinned, python_tools
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, Received

# One worker, so that each is installed once; the first test may have to install it.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("listing tools"),
    pytest.mark.timeout(300),
]

TOOL_TIMEOUT_S: Final = 120.0


def installed(tools: Callable[[], Path]) -> Path:
    try:
        return tools()
    except Unavailable as reason:
        pytest.skip(f"the tool {reason}")


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout


def commit(gateway: GatewayProcess, group: str, partition: int, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 0})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition("trips.BASE", partition, offset)])
    admin.alter_consumer_group_offsets([wanted])[group].result(60)


@pytest.fixture
def ends(expected: dict[str, list[Received]]) -> Counter[int]:
    """Of every partition, in every topic: they have the same offsets."""
    return Counter(each.partition for each in expected["trips"])


def test_kaskade_shows_topics_partitions_settings_groups_and_records(
    gateway: GatewayProcess, expected: dict[str, list[Received]], ends: Counter[int], tmp_path: Path
) -> None:
    packages = installed(python_tools)
    commit(gateway, "shown-by-kaskade", 1, 7)
    driver = [
        sys.executable,
        str(TOOLS / "kaskade_pages.py"),
        gateway.bootstrap,
        "trips.BASE",
        "3",
        "5",
    ]
    shown = json.loads(
        run(driver, PYTHONPATH=str(packages), HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))
    )
    topics = {row[0]: (row[1], row[6]) for row in shown["topics"]}
    assert topics == {topic: (str(SHARDS), f"≈{ends.total()}") for topic in expected}
    assert {(row[0], row[2], row[3]) for row in shown["partitions-table"]} == {
        (str(shard), "0", str(ends[shard])) for shard in range(SHARDS)
    }
    assert ["retention.ms", "-1"] in shown["configurations-table"]
    assert ["shown-by-kaskade", "1", "7", str(ends[1]), str(ends[1] - 7)] in shown[
        "group-offsets-table"
    ]
    read = [
        (each.partition, each.offset, (each.key or b"").decode())
        for each in expected["trips.BASE"]
        if each.partition == 3 and each.offset >= 5
    ]
    told = [(int(row[4]), int(row[5]), row[0]) for row in shown["records"]]
    assert len(told) > 0
    assert told == read[: len(told)]


def test_kafkatop_reports_the_lag_of_a_group(
    gateway: GatewayProcess, expected: dict[str, list[Received]], ends: Counter[int]
) -> None:
    packages = installed(python_tools)

    def kafkatop(*arguments: str) -> Any:
        program = [
            sys.executable,
            "-c",
            "import kafkatop; kafkatop.main()",
            "--kafka-broker",
            gateway.bootstrap,
            "--text",
        ]
        return json.loads(run([*program, *arguments], PYTHONPATH=str(packages)))

    assert {
        name: each["partitions"] for name, each in kafkatop("--topicinfo")["topics"].items()
    } == dict.fromkeys(expected, SHARDS)
    commit(gateway, "shown-by-kafkatop", 2, 9)
    told = kafkatop(
        "--summary-json",
        "--all",
        "--group-filter-pattern",
        "^shown-by-kafkatop$",
        "--poll-period",
        "1",
    )
    assert told["shown-by-kafkatop"]["topics"] == {
        "trips.BASE": {"partitions": 1, "lag_min": ends[2] - 9, "lag_max": ends[2] - 9}
    }


def test_kafka_console_lists_and_finds_offsets_and_dumps_a_topic(
    gateway: GatewayProcess, expected: dict[str, list[Received]], ends: Counter[int], tmp_path: Path
) -> None:
    program = installed(node_tools) / "node_modules" / "kafka-console" / "build" / "cli.js"

    def kafka_console(*arguments: str) -> list[Any]:
        return [
            json.loads(line)
            for line in run(
                ["node", str(program), "--brokers", gateway.bootstrap, *arguments]
            ).splitlines()
            if line[:1] in '{"'
        ]

    assert sorted(kafka_console("list")) == sorted(expected)
    [settings] = kafka_console("config", "--resource", "topic", "--resourceName", "trips")
    assert {each["name"]: each["value"] for each in settings["configs"]}["retention.ms"] == "-1"
    found = {
        each["partition"]: (int(each["low"]), int(each["high"]))
        for each in kafka_console("topic:offsets", "trips.BASE")
    }
    assert found == {shard: (0, ends[shard]) for shard in range(SHARDS)}
    moment = sorted(each.timestamp_ms for each in expected["trips"])[ends.total() // 2]
    first = {
        shard: min(
            (
                each.offset
                for each in expected["trips"]
                if each.partition == shard and each.timestamp_ms >= moment
            ),
            default=-1,
        )
        for shard in ends
    }
    assert {
        each["partition"]: int(each["offset"])
        for each in kafka_console("topic:offsets", "trips.BASE", str(moment))
    } == first
    # without it the tool waits for the record below each end, which in the topic of one column may
    # be another's
    count = str(len(expected["trips.BASE"]))
    kafka_console("topic:dump", "trips.BASE", "--count", count, "--output", str(tmp_path / "dump"))
    dumped = [json.loads(line) for line in (tmp_path / "dump").read_text().splitlines()]
    read = [
        (
            each.partition,
            each.offset,
            each.timestamp_ms,
            (each.key or b"").decode(),
            (each.value or b"").decode(),
        )
        for each in expected["trips.BASE"]
    ]
    assert sorted(
        (each["partition"], int(each["offset"]), int(each["timestamp"]), each["key"], each["value"])
        for each in dumped
    ) == sorted(read)


def test_the_guide_names_the_versions_that_are_run() -> None:
    guide = GUIDE.read_text()
    for tool, version in pinned().items():
        assert f"| {tool.capitalize() if tool == 'kaskade' else tool} | {version} |" in guide
