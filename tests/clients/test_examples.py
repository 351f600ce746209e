"""Each example, run by the commands of its page, prints the values of the store's cells."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid5

import confluent_kafka
import pytest

from cellfeed import Client, connect
from cellfeed.servers.kafka_jars import jars_directory
from cellfeed.store.cells.cell import ERASED_COLUMN
from tests.clients.grid.builds import Unavailable, fetch, kafka_jars, needs, needs_go, run
from tests.clients.spark import pyspark
from tests.support.cli_instance import ROOT, accepts, ended, processes
from tests.support.examples import PAGE, Shell, blocks, commands
from tests.support.free_ports import free_port
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("examples"),
    pytest.mark.timeout(900),
]

TRIPS = 40
SHARDS = 8
NAMESPACE = UUID("2f0a1c6e-3b7d-4f5a-9c8e-000000000000")
TIMEOUT_S = 120.0
T = TypeVar("T")
Trips = dict[tuple[int, int], tuple[UUID, dict[str, Any] | None]]
"""By partition and offset the row key and the body, None for an erased one."""


@dataclass
class Place:
    """A running instance with its service."""

    shell: Shell
    store: Client
    bootstrap: str
    service: str

    def put(self, number: int) -> UUID:
        """One more trip, through the service."""
        row_key = uuid5(NAMESPACE, str(number))
        trip = {
            "id": str(row_key),
            "fare_cents": 1_000 + number,
            "payment": ("card", "cash")[number % 2],
        }
        request = urllib.request.Request(
            f"{self.service}/trips", json.dumps(trip).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            assert answer.status == 201
        return row_key

    def trips(self) -> Trips:
        """The cells that topic trips.BASE has."""
        return {
            (shard, cell.added_id): (cell.row_key, None if cell.erased else dict(cell.body))
            for shard in range(SHARDS)
            for cell in self.store.get_cells_for_shard(shard, 0, 1_000).cells
            if cell.column_name in ("BASE", ERASED_COLUMN)
        }

    def fares(self) -> list[str]:
        """By kind of payment the trips and their fares, as the jobs print them."""
        trips, cents = Counter[str](), Counter[str]()
        for _, body in self.trips().values():
            if body is not None:
                trips[body["payment"]] += 1
                cents[body["payment"]] += body["fare_cents"]
        return [f"{kind} {trips[kind]} {cents[kind]}" for kind in sorted(trips)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("examples")
    run_dir, config = directory / "run", directory / "cellfeed.yaml"
    config.write_text(
        re.sub(r"port: \d+", "port: 0", (ROOT / "examples" / "cellfeed.yaml").read_text())
    )
    up = blocks(PAGE.read_text())[0]
    words = {
        "examples/cellfeed.yaml": str(config),
        "$HOME/.cache/cellfeed": str(jars_directory().parent),
        "$PWD/run": str(run_dir),
        "run/": f"{run_dir}/",
        ".venv/bin/python": sys.executable,
        ".venv/bin/cellfeed": f"{sys.executable} -m cellfeed.cli.main",
    }
    environment = {"CELLFEED_RUN_DIR": str(run_dir), "GOTOOLCHAIN": "local"}
    with ended(run_dir):
        Shell(words, environment).run(up, TIMEOUT_S)
        ports = {
            kind: port
            for each in processes(run_dir).values()
            for kind, port in each["ports"].items()
        }
        service = free_port()
        words |= {
            "127.0.0.1:9092": f"127.0.0.1:{ports['kafka']}",
            "127.0.0.1:7420": f"127.0.0.1:{ports['http']}",
            "127.0.0.1:8000": f"127.0.0.1:{service}",
            "service.py 8000": f"service.py {service}",
        }
        shell = Shell(words, environment)
        start, _ = commands("A service")
        with (
            closing(connect(f"http://127.0.0.1:{ports['http']}")) as store,
            shell.running(start, directory / "service"),
        ):
            found = Place(shell, store, words["127.0.0.1:9092"], f"http://127.0.0.1:{service}")
            wait_until(lambda: accepts(service), "the service accepts connections", TIMEOUT_S)
            keys = [found.put(number) for number in range(TRIPS)]
            wait_until(
                lambda: all("RECEIPT" in store.get_row(key) for key in keys),
                "every trip has a receipt",
                TIMEOUT_S,
            )
            store.erase_row(keys[7])
            yield found


def test_a_trip_that_the_service_took_can_be_read_with_its_receipt(place: Place) -> None:
    _, curl = commands("A service")
    put, get = curl.splitlines()
    acknowledged = json.loads(place.shell.run(put, TIMEOUT_S))
    key = UUID(json.loads(re.findall(r"'(.+?)'", put)[0])["id"])
    cell = place.store.get_cell_latest(key, "BASE")
    assert cell is not None
    assert acknowledged == {"shard": cell.shard, "added_id": cell.added_id}
    wait_until(lambda: "RECEIPT" in place.store.get_row(key), "the receipt", TIMEOUT_S)
    assert json.loads(place.shell.run(get, TIMEOUT_S)) == {
        "BASE": {"fare_cents": 1250, "payment": "card"},
        "RECEIPT": {"fare_cents": 1250, "vat_cents": 103},
    }
    [lag] = commands("A trigger")
    assert "receipts: 0 cells" in place.shell.run(lag, TIMEOUT_S)


def as_shown(value: str) -> str:
    return value


def of_java(value: str) -> str:
    """It prints the value whole."""
    return value if value == "erased" else str(json.loads(value)["body"]["fare_cents"])


def has_java() -> None:
    needs("javac", "a Java compiler (the package default-jdk-headless of Debian)")
    kafka_jars()


def has_go() -> None:
    module = ROOT / "examples" / "go"
    needs_go(module)
    fetch(["go", "mod", "download"], module)
    run(["go", "build", "-o", os.devnull, "."], module)  # `go run` finds it in Go's cache then


@dataclass(frozen=True)
class Consumer:
    """Its section, its group, its needs, and the fare in its line about a value."""

    section: str
    group: str
    have: Callable[[], None]
    fare: Callable[[str], str] = as_shown


CONSUMERS = [
    Consumer("A consumer in Python", "python-example", lambda: None),
    Consumer("A consumer in Java", "java-example", has_java, of_java),
    Consumer("A consumer in Go", "go-example", has_go),
]


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda each: each.group)
def test_a_consumer_prints_each_trip_and_after_a_restart_only_new_ones(
    place: Place, consumer: Consumer, tmp_path: Path
) -> None:
    available(consumer.have)
    [command] = commands(consumer.section)
    before = place.trips()
    assert None in [body for _, body in before.values()], "no row is erased"
    with place.shell.running(command, tmp_path / "first") as first:
        shown = first.lines(len(before), TIMEOUT_S)
        wait_until(lambda: is_committed(place, consumer.group, before), "a commit", TIMEOUT_S)
    assert sorted(map(words_of(consumer), shown)) == sorted(expected(before))
    place.put(TRIPS + CONSUMERS.index(consumer))
    new = {at: cell for at, cell in place.trips().items() if at not in before}
    assert len(new) == 1
    with place.shell.running(command, tmp_path / "second") as second:
        shown = second.lines(1, TIMEOUT_S)
    assert list(map(words_of(consumer), shown)) == expected(new)


def test_the_warehouse_query_sums_the_fares_of_the_cells(place: Place) -> None:
    [command] = commands("A warehouse query")
    wanted = place.fares()
    wait_until(
        lambda: place.shell.run(command, TIMEOUT_S).splitlines() == wanted,
        f"the warehouse has the fares {wanted}",
        TIMEOUT_S,
    )


def test_the_spark_job_sums_the_fares_of_the_cells(place: Place) -> None:
    packages = available(pyspark)
    [command] = commands("A Spark job")
    shell = place.shell.with_environment(
        PATH=f"{packages}/bin:{os.environ['PATH']}",
        PYTHONPATH=str(packages),
        PYSPARK_PYTHON=sys.executable,
    )
    shown = shell.run(command, 5 * TIMEOUT_S).replace("\x1b[0m", "")  # Maven ends its colours
    assert shown.splitlines() == place.fares()


def available(have: Callable[[], T]) -> T:
    """The result; the test is skipped where that cannot be had."""
    try:
        return have()
    except Unavailable as reason:
        pytest.skip(f"{reason}")


def words_of(consumer: Consumer) -> Callable[[str], tuple[str, str, str]]:
    def words(line: str) -> tuple[str, str, str]:
        at, key, value = line.split(" ", 2)
        return at, key, consumer.fare(value)

    return words


def expected(trips: Trips) -> list[tuple[str, str, str]]:
    return [
        (f"{shard}/{added_id}", str(row_key), "erased" if body is None else str(body["fare_cents"]))
        for (shard, added_id), (row_key, body) in trips.items()
    ]


def is_committed(place: Place, group: str, trips: Iterable[tuple[int, int]]) -> bool:
    """Whether the group's offsets are past these records."""
    ends = {shard: added_id + 1 for shard, added_id in sorted(trips)}
    reader = confluent_kafka.Consumer({"bootstrap.servers": place.bootstrap, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition("trips.BASE", shard) for shard in ends]
        return all(
            each.offset >= ends[each.partition] for each in reader.committed(asked, TIMEOUT_S)
        )
    finally:
        reader.close()
