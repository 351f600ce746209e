"""An instance over real servers of its own, and where a fault in it is named: in the console, by
the doctor, and in the metrics."""

from __future__ import annotations

import html
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cellfeed.run_dir import RunDir
from cellfeed.store.http.client import Client
from tests.support import local_zookeeper
from tests.support.certificates import Certificates, make_certificates
from tests.support.cli_instance import cellfeed, running
from tests.support.local_kafka import Kafka, started_kafka
from tests.support.local_mariadb import MariaDB
from tests.support.local_zookeeper import ZooKeeper
from tests.support.mariadb_cluster import three_servers
from tests.support.waiting import wait_until

SEEN_WITHIN_S = 90.0
"""Far above the ten seconds that are promised: a busy machine fails no test."""

SHARDS = 4
PROGRAM = """
from cellfeed.bridge.triggers.program import RetryPolicy, trigger

@trigger(column="BASE", retry=RetryPolicy(2, 0.01, 0.01), pause_rows=None)
def bill(row_key, *, cell):
    if cell.body.get("poison"):
        raise ValueError("poison")
"""


class Watched(NamedTuple):
    """A running instance. ``certificates``: of its gateway's listener."""

    run_dir: Path
    nodes: dict[str, MariaDB]
    zookeeper: ZooKeeper
    kafka: Kafka
    certificates: Certificates

    def put(self, number: int, body: dict[str, Any]) -> None:
        """Writes a cell through the worker. Raises as the client does."""
        port = RunDir(self.run_dir).process("worker").ports["http"]
        with Client(f"http://127.0.0.1:{port}", "trips") as client:
            client.put_cell(UUID(int=number), "BASE", 1, body)

    def command(self, *words: str) -> None:
        """Runs a command of the instance, which must succeed."""
        done = cellfeed(*words, "--run-dir", str(self.run_dir), timeout_s=120)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def watched(directory: Path) -> Iterator[Watched]:
    """An instance with three MariaDB servers, a ZooKeeper and a Kafka. Skips where one cannot be
    had."""
    if reason := local_zookeeper.why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        servers = stack.enter_context(three_servers())
        broker = stack.enter_context(started_kafka())
        zookeeper = ZooKeeper(directory / "zookeeper")
        stack.callback(zookeeper.kill)
        zookeeper.start()
        made = make_certificates(directory / "certificates")
        (directory / "bill.py").write_text(PROGRAM)
        nodes = dict(zip("abc", servers, strict=True))
        config = _config(directory, nodes, zookeeper, broker, made)
        file = directory / "cellfeed.yaml"
        file.write_text(config)
        done = cellfeed("cluster", "init", "--config", str(file))
        assert done.returncode == 0, done.stderr
        run_dir = stack.enter_context(running(directory, config))
        yield Watched(run_dir, nodes, zookeeper, broker, made)


def _config(
    directory: Path,
    nodes: dict[str, MariaDB],
    zookeeper: ZooKeeper,
    broker: Kafka,
    made: Certificates,
) -> str:
    tls = {"name": "tls", "security": "tls", "port": 0}
    tls |= {"certificate": made.certificate, "key": made.key}
    plain = {"name": "plain", "port": 0}
    return yaml.safe_dump(
        {
            "datastore": {
                "shards": SHARDS,
                "clusters": [
                    {
                        "name": "c1",
                        "nodes": [{"name": each, "url": nodes[each].url} for each in nodes],
                    }
                ],
            },
            "coordination": f"{zookeeper.url}/watch?timeout_s=3",
            "workers": [{"port": 0}],
            "gateways": [
                {"listeners": [plain, tls], "registry_port": 0, "group_initial_delay_s": 0}
            ],
            "triggers": [{"app": str(directory / "bill.py"), "name": "billing", "lease_s": 2}],
            "indexes": [{"name": "index", "lease_s": 2}],
            "exports": [{"name": "eu", "bootstrap": broker.bootstrap, "lease_s": 2}],
            "consoles": [{"port": 0}],
        }
    )


# --- where a fault is named -----------------------------------------------------------------------


class Fault(NamedTuple):
    """How a fault has to be named: ``where`` is the kind and the name, ``reason`` and ``remedy``
    parts of them."""

    where: str
    cause: str
    reason: str
    remedy: str


def await_named(run_dir: Path, fault: Fault) -> dict[str, float]:
    """Waits until all three places name it; after how many seconds each did."""
    begun_s = time.monotonic()

    def seen(place: str, named: Callable[[Path, Fault], bool]) -> tuple[str, float]:
        wait_until(lambda: named(run_dir, fault), f"{place} names {fault}", SEEN_WITHIN_S)
        return place, round(time.monotonic() - begun_s, 1)

    places = {"console": in_console, "doctor": by_doctor, "metrics": in_metrics}
    with ThreadPoolExecutor(len(places)) as threads:
        found = [threads.submit(seen, *each) for each in places.items()]
        return dict(each.result() for each in found)


def await_gone(run_dir: Path, fault: Fault) -> None:
    """Waits until none of them names it any more."""
    for place, named in (("console", in_console), ("metrics", in_metrics), ("doctor", by_doctor)):
        wait_until(
            lambda named=named: not named(run_dir, fault),  # type: ignore[misc]
            f"{place} no longer names {fault}",
            SEEN_WITHIN_S,
        )


def in_console(run_dir: Path, fault: Fault) -> bool:
    """Whether a row of the console's first page has all of it."""
    text = html.unescape(asked(run_dir, "/"))
    rows = text.split("<tr>")
    return any(
        f">{fault.where}" in row and fault.reason in row and fault.remedy in row for row in rows
    )


def by_doctor(run_dir: Path, fault: Fault) -> bool:
    """Whether the doctor has it as a problem, and ends with 1."""
    said = cellfeed("doctor", "--json", "--run-dir", str(run_dir), timeout_s=120)
    found = [json.loads(line) for line in said.stdout.splitlines()]
    named = any(
        each["level"] == "problem"
        and each["subject"].startswith(fault.where)
        and fault.reason in each["found"]
        and fault.remedy in each["remedy"]
        for each in found
    )
    assert not named or said.returncode == 1
    return named


def in_metrics(run_dir: Path, fault: Fault) -> bool:
    """Whether there is a series of that kind, name and cause."""
    return bool(scraped_labels(run_dir, fault))


def scraped_labels(run_dir: Path, fault: Fault) -> dict[str, str]:
    """The labels of the fault's series; none where there is none."""
    kind, _, name = fault.where.partition(" ")
    wanted = {"kind": kind, "name": name, "cause": fault.cause}
    for family in text_string_to_metric_families(asked(run_dir, "/metrics")):
        if family.name == "cellfeed_stuck_seconds":
            for sample in family.samples:
                if sample.labels == wanted:
                    return wanted
    return {}


def asked(run_dir: Path, path: str) -> str:
    """A page of the console."""
    port = RunDir(run_dir).process("console").ports["console"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())
