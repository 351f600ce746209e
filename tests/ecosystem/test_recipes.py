"""Each recipe of ``docs/recipes.md``, run as it stands there: killed with ``kill -9`` in the
middle, started again, and what it wrote compared with the store. Minutes, and hundreds of megabytes
to fetch: ``make ecosystem`` runs them, other runs skip them with the reason."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

import cellfeed.schemas
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.versions import Settings, register
from cellfeed.loading.records import FileFormat, read_records
from cellfeed.loading.taxi import cells_of_trip, shipped_csv
from cellfeed.store.datastore import Datastore
from tests.clients.grid.builds import Unavailable
from tests.ecosystem.builds import kafka_class_path, python_packages
from tests.support.cli_instance import ROOT
from tests.support.free_ports import free_port
from tests.support.local_kafka import started_kafka
from tests.support.running_gateway import GatewayProcess
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("CELLFEED_ECOSYSTEM"), reason="runs in `make ecosystem` only"
    ),
]

FLAGS: Final = re.MULTILINE | re.DOTALL
PAGE: Final = ROOT / "docs" / "recipes.md"
TRIPS: Final = 400
"""Put before, and again while the recipe is down."""
WAIT_S: Final = 180.0
JAVA: Final = (
    "java",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
Places = list[tuple[int, int]]
"""Shard and added_id of each record that a recipe has written, in its order."""


def fences(section: str) -> list[str]:
    """The fenced blocks of a section of the page."""
    found = re.search(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", PAGE.read_text(), FLAGS)
    assert found is not None, section
    return [str(text) for text in re.findall(r"^```\w+\n(.*?)^```$", found[1], FLAGS)]


class Place:
    """A gateway with the page's views, and a directory for a recipe; ``kafka`` its cluster."""

    def __init__(self, directory: Path, store: Datastore, gateway: GatewayProcess) -> None:
        self.directory = directory
        self.words = {
            "127.0.0.1:9092": gateway.bootstrap,
            "127.0.0.1:8081": f"127.0.0.1:{gateway.registry_port}",
            "127.0.0.1:8083": f"127.0.0.1:{free_port()}",
        }
        self._store = store
        self._trips = read_records(shipped_csv(), FileFormat.CSV)

    def put(self, count: int) -> None:
        bodies: list[dict[str, Any]] = []
        while len(bodies) < count:
            record = next(self._trips)
            assert record.fields is not None
            bodies.append(dict(cells_of_trip(record.fields)[0].body))
        for result in self._store.put_cells([(uuid4(), "BASE", 1, body) for body in bodies]):
            result.or_raise()

    def cells(self) -> set[tuple[int, int]]:
        return {
            (shard, cell.added_id)
            for shard in range(self._store.shards)
            for cell in self._store.get_cells_for_shard(shard, 0, 10_000).cells
        }

    def file(self, name: str, text: str) -> Path:
        for word, other in self.words.items():
            text = text.replace(word, other)
        path = self.directory / name
        path.write_text(text)
        return path

    def killed_and_resumed(
        self,
        command: Sequence[str],
        seen: Callable[[], Places],
        *,
        environment: Mapping[str, str] | None = None,
        prepared: Callable[[], object] = lambda: None,
        started: Callable[[], object] = lambda: None,
        exactly_once: bool = False,
    ) -> None:
        """Runs a recipe until it has written something, kills it, puts more cells, and runs it
        again until it has written every cell."""

        @contextmanager
        def running() -> Iterator[None]:
            prepared()
            with (
                (self.directory / "log").open("ab") as log,
                (self.directory / "output").open("ab") as output,
            ):
                process = subprocess.Popen(
                    command,
                    cwd=self.directory,
                    env={**os.environ, **(environment or {})},
                    stdout=output,
                    stderr=log,
                    start_new_session=True,
                )
            try:
                yield
                assert process.poll() is None, "it ended by itself: " + self.log()
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

        self.put(TRIPS)
        with running():
            started()
            self._wait(lambda: len(set(seen())) >= TRIPS // 2, "half of the cells")
        self.put(TRIPS)
        with running():
            wanted = self.cells()
            assert len(wanted) == 2 * TRIPS
            self._wait(lambda: wanted <= set(seen()), "every cell")
        assert set(seen()) == wanted, "what is in no store"
        if exactly_once:
            assert len(seen()) == len(wanted), "a record comes twice"

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        try:
            wait_until(holds, what, WAIT_S)
        except BaseException:
            print(self.log())
            raise

    def log(self) -> str:
        return (self.directory / "log").read_text()[-4_000:]

    def lines(self, name: str = "output") -> list[str]:
        """Whole ones of a file."""
        path = self.directory / name
        return path.read_text().split("\n")[:-1] if path.exists() else []


def pairs(lines: list[str]) -> Places:
    found = [line.split() for line in lines]
    return [(int(shard), int(added_id)) for shard, added_id in found]


def envelopes(lines: list[str]) -> Places:
    """Of JSON values, one a line; a line that a kill has cut is passed over."""
    found = re.findall(r'\{"added_id":(\d+),"body":\{[^}]*\}.*?"shard":(\d+)\}', "\n".join(lines))
    return [(int(shard), int(added_id)) for added_id, shard in found]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    [views, *_] = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    declared = yaml.safe_load(views)["datastore"]
    [schema] = declared["schemas"]
    with Datastore.open_embedded(tmp_path / "store") as store:
        register(
            store.state,
            schema["column"],
            body_schema(cellfeed.schemas.avro_text(schema["schema"])),
            Settings(schema["unfit"]),
        )
        running = GatewayProcess(
            tmp_path / "store",
            tmp_path / "gateway.log",
            formats={"*": "avro"},
            topics=declared["topics"],
        )
        with running as gateway:
            (tmp_path / "recipe").mkdir()
            yield Place(tmp_path / "recipe", store, gateway)


@pytest.fixture
def clustered(place: Place) -> Iterator[Place]:
    """With a Kafka cluster."""
    with started_kafka() as broker:
        place.words["127.0.0.1:9094"] = broker.bootstrap
        yield place


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
