"""Each recipe of ``docs/recipes.md``, run as it stands there: killed with ``kill -9`` in the
middle, started again, and its output compared with the store. Minutes, and hundreds of megabytes to
fetch: ``make ecosystem`` runs them, other runs skip them with the reason. Those of Spark and Flink
have files of their own."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from typing import Final
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients.grid.builds import Unavailable
from tests.ecosystem.builds import kafka_class_path, python_packages
from tests.ecosystem.place import RUNS, WAIT_S, Place, Places, fences
from tests.support.waiting import wait_until

pytestmark = RUNS

JAVA: Final = (
    "java",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


def pairs(lines: list[str]) -> Places:
    found = [line.split() for line in lines]
    return [(int(shard), int(added_id)) for shard, added_id in found]


def envelopes(lines: list[str]) -> Places:
    """Of JSON values, one a line; a line that a kill has cut is passed over."""
    found = re.findall(r'\{"added_id":(\d+),"body":\{[^}]*\}.*?"shard":(\d+)\}', "\n".join(lines))
    return [(int(shard), int(added_id)) for added_id, shard in found]


def packages() -> dict[str, str]:
    try:
        return {"PYTHONPATH": str(python_packages())}
    except Unavailable as reason:
        pytest.fail(str(reason))


def jars() -> str:
    try:
        return kafka_class_path()
    except Unavailable as reason:
        pytest.fail(str(reason))


def test_quix_streams(place: Place) -> None:
    [program] = fences("Quix Streams")
    place.file("fares.py", program)
    place.killed_and_resumed(
        [sys.executable, "fares.py"], lambda: pairs(place.lines()), environment=packages()
    )


def test_faust(place: Place) -> None:
    [program] = fences("Faust")
    place.file("fares.py", program)
    command = [sys.executable, "-m", "faust", "-A", "fares", "worker", "--without-web"]
    place.killed_and_resumed(
        command, lambda: pairs(place.lines("fares.txt")), environment=packages()
    )


def test_bytewax(place: Place) -> None:
    program, script = fences("Bytewax")
    place.file("fares.py", program)
    place.file("fares.sh", script.replace("python -m", f"{sys.executable} -m"))
    place.killed_and_resumed(
        ["sh", "fares.sh"],
        lambda: pairs(place.lines("fares.txt")),
        environment=packages(),
        exactly_once=True,
    )


def test_kafka_connect(clustered: Place) -> None:
    place = clustered
    worker, connector = fences("Kafka Connect with two clusters")
    (place.directory / "plugins").mkdir()
    more = f"plugin.discovery=service_load\nplugin.path={place.directory}/plugins\n"
    path = place.file("worker.properties", worker + more)
    config = place.file(
        "connector.json", connector.replace("trips.txt", f"{place.directory}/trips.txt")
    )

    def taken() -> bool:
        url = f"http://{place.words['127.0.0.1:8083']}/connectors/trips/config"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, config.read_bytes(), headers, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status in (200, 201)
        except OSError:
            return False

    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    place.killed_and_resumed(
        [*JAVA, "-cp", jars(), main, str(path)],
        lambda: envelopes(place.lines("trips.txt")),
        started=lambda: wait_until(taken, "Connect takes the connector", WAIT_S),
    )


def test_mirror_maker(clustered: Place) -> None:
    place = clustered
    [settings] = fences("MirrorMaker 2")
    path = place.file("mm2.properties", settings)
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    place.killed_and_resumed(
        [*JAVA, "-cp", jars(), main, str(path)],
        lambda: envelopes(_values(place.words["127.0.0.1:9094"], "cellfeed.trips-json")),
    )


def test_kafka_streams(place: Place) -> None:
    [program] = fences("Kafka Streams")
    place.file("TripTable.java", program)
    place.killed_and_resumed(
        [*JAVA, "-cp", jars(), "TripTable.java"], lambda: envelopes(place.lines())
    )


def _values(bootstrap: str, topic: str) -> list[str]:
    """All that a topic has now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid4().hex})
    try:
        known = consumer.list_topics(timeout=30).topics
        if topic not in known:
            return []
        found: list[str] = []
        for partition in known[topic].partitions:
            at = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(at, timeout=30)
            consumer.assign([at])
            while end and (message := consumer.poll(10)) is not None and not message.error():
                found.append((message.value() or b"").decode())
                if (message.offset() or 0) + 1 >= end:
                    break
        return found
    finally:
        consumer.close()


def test_a_line_that_a_kill_has_cut_is_no_record() -> None:
    whole = json.dumps({"added_id": 7, "body": {"n": 1}, "shard": 3}, separators=(",", ":"))
    assert envelopes([whole[:20] + whole, whole]) == [(3, 7)] * 2
