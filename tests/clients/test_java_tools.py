"""Apache Kafka's own command-line tools (the Java clients) against a running gateway."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest

from tests.support.kafka_jars import JarsUnavailable, kafka_class_path
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, Received

pytestmark = pytest.mark.integration

TOOLS = "org.apache.kafka.tools"
CORE_TOOLS = "kafka.admin"
"""Where Kafka keeps the tools that are written in Scala."""
TIMEOUT_S = 90
SMALL_JVM = (
    "-Xmx256m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class Java:
    """Runs the tools."""

    def __init__(self, class_path: str) -> None:
        self._class_path = class_path

    def __call__(
        self,
        tool: str,
        gateway: GatewayProcess,
        *arguments: str,
        stdin: str = "",
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        name = tool if tool.startswith(CORE_TOOLS) else f"{TOOLS}.{tool}"
        command = [
            "java",
            *SMALL_JVM,
            "-cp",
            self._class_path,
            name,
            "--bootstrap-server",
            gateway.bootstrap,
            *arguments,
        ]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert not check or done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
        return done


@pytest.fixture(scope="session")
def java() -> Java:
    try:
        return Java(kafka_class_path())
    except JarsUnavailable as reason:
        pytest.skip(f"no Java tools: {reason}")


def of_console(output: str) -> list[tuple[str, ...]]:
    """The records of the console consumer: ``Partition:3``, ``Offset:17``, key, value."""
    return [tuple(line.split("\t")) for line in output.splitlines()]


def as_console(records: list[Received]) -> list[tuple[str, ...]]:
    return [
        (
            f"Partition:{each.partition}",
            f"Offset:{each.offset}",
            (each.key or b"").decode(),
            (each.value or b"").decode(),
        )
        for each in records
    ]


SHOW_ALL = (
    "--property",
    "print.partition=true",
    "--property",
    "print.offset=true",
    "--property",
    "print.key=true",
)


def test_the_console_consumer_reads_a_topic_whole_in_a_group(
    java: Java, gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    count = len(expected["trips.BASE"])
    done = java(
        "consumer.ConsoleConsumer",
        gateway,
        "--topic",
        "trips.BASE",
        "--from-beginning",
        "--max-messages",
        str(count),
        "--group",
        "java-whole",
        *SHOW_ALL,
    )
    assert sorted(of_console(done.stdout)) == sorted(as_console(expected["trips.BASE"]))


def test_the_console_consumer_reads_one_partition_from_an_offset(
    java: Java, gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    wanted = [each for each in expected["trips.BASE"] if each.partition == 2 and each.offset >= 50]
    arguments = (
        "--topic",
        "trips.BASE",
        "--partition",
        "2",
        "--offset",
        "50",
        "--max-messages",
        str(len(wanted)),
    )
    assert of_console(
        java("consumer.ConsoleConsumer", gateway, *arguments, *SHOW_ALL).stdout
    ) == as_console(wanted)


def test_a_group_resumes_from_its_commit_after_the_gateway_is_killed(
    java: Java, own_gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    total = len(expected["trips.BASE"])
    seen: Counter[int] = Counter()
    next_offset: dict[int, int] = {}
    for count in (1_000, total - 1_000):
        arguments = (
            "--topic",
            "trips.BASE",
            "--group-id",
            "java-group",
            "--max-messages",
            str(count),
            "--reset-policy",
            "earliest",
        )
        for line in java("VerifiableConsumer", own_gateway, *arguments).stdout.splitlines():
            event = json.loads(line)
            for each in event["partitions"] if event["name"] == "records_consumed" else ():
                # Positions only go forward, over the kill too.
                assert each["minOffset"] >= next_offset.get(each["partition"], 0)
                next_offset[each["partition"]] = each["maxOffset"] + 1
                seen[each["partition"]] += each["count"]
        own_gateway.kill()
        own_gateway.start()
    assert seen == Counter(each.partition for each in expected["trips.BASE"])


def test_the_group_tool_lists_describes_resets_and_deletes(
    java: Java, own_gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    tool = "consumer.group.ConsumerGroupCommand"
    count = len(expected["trips"])
    java(
        "VerifiableConsumer",
        own_gateway,
        "--topic",
        "trips",
        "--group-id",
        "g1",
        "--max-messages",
        str(count),
        "--reset-policy",
        "earliest",
    )
    ends = {
        partition: sum(each.partition == partition for each in expected["trips"])
        for partition in range(SHARDS)
    }

    def described() -> dict[int, tuple[int, int, int]]:
        lines = java(tool, own_gateway, "--describe", "--all-groups").stdout.splitlines()
        rows = [line.split() for line in lines if line.startswith("g1")]
        return {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows}

    assert java(tool, own_gateway, "--list").stdout.split() == ["g1"]
    assert described() == {partition: (end, end, 0) for partition, end in ends.items()}
    java(
        tool,
        own_gateway,
        "--reset-offsets",
        "--group",
        "g1",
        "--topic",
        "trips",
        "--to-offset",
        "5",
        "--execute",
    )
    assert described() == {partition: (5, end, end - 5) for partition, end in ends.items()}
    java(tool, own_gateway, "--delete-offsets", "--group", "g1", "--topic", "trips:3")
    assert described().keys() == ends.keys() - {3}
    java(tool, own_gateway, "--delete", "--group", "g1")
    assert java(tool, own_gateway, "--list").stdout.split() == []


def test_the_offset_tool_reports_every_end_and_finds_timestamps(
    java: Java, gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    ends = [
        f"trips:{partition}:{sum(each.partition == partition for each in expected['trips'])}"
        for partition in range(SHARDS)
    ]
    assert sorted(java("GetOffsetShell", gateway, "--topic", "trips").stdout.split()) == sorted(
        ends
    )
    starts = [f"trips:{partition}:0" for partition in range(SHARDS)]
    assert sorted(
        java("GetOffsetShell", gateway, "--topic", "trips", "--time", "earliest").stdout.split()
    ) == sorted(starts)


def test_the_performance_tool_reads_as_many_records_as_there_are(
    java: Java, gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    count = len(expected["trips"])
    arguments = (
        "--topic",
        "trips",
        "--messages",
        str(count),
        "--group",
        "java-performance",
        "--timeout",
        "60000",
        "--hide-header",
    )
    [line] = [
        line
        for line in java("ConsumerPerformance", gateway, *arguments).stdout.splitlines()
        if line.count(", ") > 5
    ]
    _, _, _, _, records, *_ = line.split(", ")
    assert int(records) == count


def test_the_topic_tool_describes_a_topic(java: Java, gateway: GatewayProcess) -> None:
    lines = java(
        "TopicCommand", gateway, "--describe", "--topic", "trips.NOTES"
    ).stdout.splitlines()
    assert f"PartitionCount: {SHARDS}\tReplicationFactor: 1" in lines[0]
    assert len(lines) == 1 + SHARDS


def test_the_administration_tools_describe_log_dirs_and_settings(
    java: Java, gateway: GatewayProcess
) -> None:
    """The requests behind a page of brokers: kafka-ui and AKHQ ask the same with the same
    client."""
    told = java(
        "LogDirsCommand", gateway, "--describe", "--topic-list", "trips"
    ).stdout.splitlines()
    [broker] = json.loads(next(line for line in told if line.startswith("{")))["brokers"]
    [memory] = broker["logDirs"]
    assert memory["error"] is None
    assert sorted(each["partition"] for each in memory["partitions"]) == [
        f"trips-{partition}" for partition in sorted(range(SHARDS), key=str)
    ]
    node_id = str(broker["broker"])
    settings = java(
        f"{CORE_TOOLS}.ConfigCommand",
        gateway,
        "--describe",
        "--all",
        "--entity-type",
        "brokers",
        "--entity-name",
        node_id,
    ).stdout
    assert f"advertised.listeners=PLAINTEXT://{gateway.bootstrap}" in settings
    java("FeatureCommand", gateway, "describe")
    acls = java("AclCommand", gateway, "--list", check=False)
    assert "SecurityDisabledException" in acls.stdout + acls.stderr


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        pytest.param(
            f"{CORE_TOOLS}.ConfigCommand",
            ("--describe", "--entity-type", "users"),
            "",
            id="quotas and credentials of users",
        ),
        pytest.param(
            "reassign.ReassignPartitionsCommand",
            ("--list",),
            "No partition reassignments found.",
            id="reassignments",
        ),
        pytest.param(
            "TransactionsCommand",
            ("find-hanging", "--broker-id", "1"),
            "ProducerId",
            id="producers and transactions",
        ),
    ],
)
def test_a_tool_that_asks_for_an_unknown_topic_gets_that_error(
    java: Java, gateway: GatewayProcess, tool: str, arguments: tuple[str, ...], told: str
) -> None:
    """Quotas, reassignments, transactions and the like: an empty list is an answer, an error is
    not."""
    done = java(tool, gateway, *arguments)
    assert told in done.stdout
    assert "Exception" not in done.stdout + done.stderr


def test_a_producer_gets_the_error_that_writes_are_refused(
    java: Java, gateway: GatewayProcess
) -> None:
    for idempotent in ("true", "false"):
        done = java(
            "ConsoleProducer",
            gateway,
            "--topic",
            "trips",
            "--producer-property",
            f"enable.idempotence={idempotent}",
            stdin="a value\n",
            check=False,
        )
        assert "TopicAuthorizationException" in done.stdout + done.stderr, idempotent
