"""The clients of the grid: how each is called, the scenarios that it has no call for, and how its
output is read."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from cellfeed.servers.kafka_jars import KAFKA_VERSION
from tests.clients.grid.builds import (
    DRIVERS,
    go_clients,
    java_class_path,
    kafka_jars,
    kcat,
    node_clients,
)

ALL_MODES: Final = frozenset({"assign", "group", "produce", "transaction"})
SMALL_JVM: Final = (
    "java",
    "-Xmx256m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

Event = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """``command`` gives the words to run for a mode and its arguments (``drivers/README.md``), and
    raises ``Unavailable`` where the client cannot be had. ``event`` reads a line of its output;
    None for a line that says nothing. ``ends_by_signal``: it does not look at its standard input.
    ``dies_with_its_coordinator``: its process ends when the broker that coordinates its group is
    gone, and somebody starts another one."""

    name: str
    version: str
    command: Callable[..., list[str]]
    modes: frozenset[str] = ALL_MODES
    event: Callable[[str], Event | None] = json.loads
    ends_by_signal: bool = False
    dies_with_its_coordinator: bool = False


def _python(package: str) -> Client:
    driver = DRIVERS / "python" / f"{package.replace('-', '_')}_driver.py"
    return Client(package, version(package), lambda *words: [sys.executable, str(driver), *words])


def _go(name: str, module: str, **settings: Any) -> Client:
    found = re.search(rf"{re.escape(module)} v(\S+)", (DRIVERS / "go" / "go.mod").read_text())
    assert found is not None
    return Client(name, found[1], lambda *words: [str(go_clients()), name, *words], **settings)


def _node(package: str, driver: str, **settings: Any) -> Client:
    pinned: str = json.loads((DRIVERS / "node" / "package.json").read_text())["dependencies"][
        package
    ]
    return Client(
        package, pinned, lambda *words: ["node", str(node_clients() / driver), *words], **settings
    )


def _java() -> Client:
    return Client(
        "Java: KafkaConsumer",
        KAFKA_VERSION,
        lambda *words: [*SMALL_JVM, "-cp", java_class_path(), "JavaClient", *words],
    )


def _verifiable_consumer() -> Client:
    def command(_mode: str, bootstrap: str, topic: str, group: str, count: str) -> list[str]:
        tool = [
            *SMALL_JVM,
            "-cp",
            kafka_jars(),
            "org.apache.kafka.tools.VerifiableConsumer",
            "--verbose",
            "--bootstrap-server",
            bootstrap,
        ]
        return [
            *tool,
            "--topic",
            topic,
            "--group-id",
            group,
            "--max-messages",
            str(int(count) or -1),
            "--reset-policy",
            "earliest",
            *_SESSION,
        ]

    def event(line: str) -> Event | None:
        told = json.loads(line)
        if told["name"] == "record_data":
            return {
                "event": "record",
                **{name: told[name] for name in ("partition", "offset", "key", "value")},
            }
        if told["name"] == "partitions_assigned":
            return {
                "event": "assigned",
                "partitions": [each["partition"] for each in told["partitions"]],
            }
        if told["name"] == "offsets_committed" and told["success"]:
            return {
                "event": "committed",
                "offsets": {str(each["partition"]): each["offset"] for each in told["offsets"]},
            }
        return None

    return Client(
        "Java: VerifiableConsumer",
        KAFKA_VERSION,
        command,
        frozenset({"group"}),
        event,
        ends_by_signal=True,
    )


_SESSION: Final = ("--session-timeout", "10000")


def _kcat() -> Client:
    """Its group members commit by themselves, from time to time and at the end, and tell nobody."""

    def command(mode: str, bootstrap: str, topic: str, *rest: str) -> list[str]:
        program = [kcat(), "-b", bootstrap, "-q", "-J", "-u"]
        if mode == "assign":
            return [*program, "-C", "-t", topic, "-o", "beginning", "-c", rest[1]]
        if mode == "group":
            settings = [
                "auto.offset.reset=earliest",
                "session.timeout.ms=10000",
                "heartbeat.interval.ms=1000",
                "auto.commit.interval.ms=300",
            ]
            limit = ["-c", rest[1]] if int(rest[1]) else []
            return [
                *program,
                *(word for each in settings for word in ("-X", each)),
                *limit,
                "-G",
                rest[0],
                topic,
            ]
        settings = ["-X", "transactional.id=transactions"] if mode == "transaction" else []
        return [
            "sh",
            "-c",
            'echo value | "$@" 2>&1',
            "sh",
            kcat(),
            "-b",
            bootstrap,
            *settings,
            "-P",
            "-t",
            topic,
        ]

    def event(line: str) -> Event | None:
        if line.startswith("%"):  # a report of a write
            return (
                {"event": "refused", "error": line}
                if line.startswith(("% Delivery failed", "% ERROR"))
                else None
            )
        told = json.loads(line)
        return {
            "event": "record",
            "partition": told["partition"],
            "offset": told["offset"],
            "key": told["key"],
            "value": told["payload"],
        }

    return Client("kcat", "as installed", command, ALL_MODES, event, ends_by_signal=True)


CLIENTS: Final[dict[str, Client]] = {
    client.name: client
    for client in (
        _python("confluent-kafka"),
        _python("aiokafka"),
        _python("kafka-python"),
        _kcat(),
        _java(),
        _verifiable_consumer(),
        _go("franz-go", "github.com/twmb/franz-go"),
        _go("sarama", "github.com/IBM/sarama"),
        _go("kafka-go", "github.com/segmentio/kafka-go"),
        _node("kafkajs", "kafkajs.mjs", modes=ALL_MODES - {"assign"}),
        # It never asks for its group's coordinator again; an exception inside the library ends the
        # process once that broker is not in the metadata any more.
        _node("@platformatic/kafka", "platformatic.mjs", dies_with_its_coordinator=True),
    )
}
