"""Each injected fault is named in the console, by the doctor and in the metrics: the right part,
with its cause, its reason and its remedy, until it is over."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from cellfeed.run_dir import RunDir
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.client import Client
from tests.support.alert_rules import rules
from tests.support.certificates import make_certificates
from tests.support.cli_instance import cellfeed, running
from tests.support.promtool import Series, fired
from tests.support.small_disk import NoSmallDisk, fill, make_room, small_disk
from tests.support.waiting import wait_until
from tests.support.watched_instance import (
    Fault,
    Watched,
    await_gone,
    await_named,
    scraped_labels,
    watched,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("watchdog"),
]

ALERTS = "docs/operate/alerts"
DEFINITION = """
table: NAME
datastore: trips
column_defs:
- {column_name: BASE, fields: [{field: driver, type: string}]}
"""

Report = Callable[[str, object], None]


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("watchdog")) as made:
        yield made


def named(run_dir: Path, fault: Fault, report: Report) -> None:
    """Waits until it is named everywhere, and reports after how long. The scraped series fires the
    alert of its cause when it lasts."""
    seconds = await_named(run_dir, fault)
    report("seconds", seconds)
    [rule] = [each for each in rules() if each.page == f"{ALERTS}/{fault.cause}.md"][:1]
    labels = scraped_labels(run_dir, fault)
    if shutil.which("promtool") is not None:
        lasting = Series("cellfeed_stuck_seconds", {**labels, "job": "cellfeed"}, "0+60x120")
        assert [each["name"] for each in fired([lasting], rule.alert)] == [labels["name"]]


def test_a_paused_trigger(instance: Watched, record_property: Report) -> None:
    fault = Fault("trigger billing", "paused", "because a test", "cellfeed triggers resume billing")
    instance.command("triggers", "pause", "billing", "--reason", "a test")
    named(instance.run_dir, fault, record_property)
    instance.command("triggers", "resume", "billing", "--reason", "over")
    await_gone(instance.run_dir, fault)


def test_a_poison_cell(instance: Watched, record_property: Report) -> None:
    fault = Fault("trigger billing", "cells-parked", "parked cells: 1", "cellfeed parked list")
    instance.put(1, {"poison": True})
    named(instance.run_dir, fault, record_property)
    port = RunDir(instance.run_dir).process("worker").ports["http"]
    with Client(f"http://127.0.0.1:{port}", "trips") as client:
        cell = client.get_row(UUID(int=1))["BASE"]
    place = f"{cell.shard}/{cell.added_id}"
    instance.command("parked", "skip", "billing", place, "--reason", "a test")
    await_gone(instance.run_dir, fault)


def test_a_dead_master_and_the_fenced_node_that_it_becomes(
    instance: Watched, record_property: Report
) -> None:
    old = _master(instance)
    dead = Fault(
        f"cluster c1 node {old}", "master-away", "it is the master", "cellfeed cluster promote c1"
    )
    instance.nodes[old].kill()
    named(instance.run_dir, dead, record_property)
    instance.command("cluster", "promote", "c1")
    new = _master(instance)
    assert new != old
    fenced = Fault(
        f"cluster c1 node {old}",
        "node-fenced",
        f"does not follow the present master, {new}",
        f"cellfeed cluster rejoin c1 {old}",
    )
    instance.nodes[old].start()
    named(instance.run_dir, fenced, record_property)
    instance.command("cluster", "rejoin", "c1", old)
    await_gone(instance.run_dir, fenced)
    await_gone(instance.run_dir, dead)


def _master(instance: Watched) -> str:
    """The node that takes writes: the one that is not read-only and follows nobody."""
    for name, node in instance.nodes.items():
        if node.is_running() and node.sql("SELECT @@read_only") == [(0,)]:
            return name
    raise AssertionError("there is no master")


def test_zookeeper_away(instance: Watched, record_property: Report) -> None:
    fault = Fault("coordination groups", "coordination-away", "", "bring the coordination back")
    instance.zookeeper.kill()
    assert not instance.zookeeper.is_running()
    named(instance.run_dir, fault, record_property)
    instance.zookeeper.start()
    await_gone(instance.run_dir, fault)


def test_a_kafka_cluster_away(instance: Watched, record_property: Report) -> None:
    fault = Fault("export eu", "kafka-away", "the Kafka cluster", "start the brokers")
    instance.kafka.pause()
    try:
        instance.put(2, {"driver": "ann"})
        named(instance.run_dir, fault, record_property)
    finally:
        instance.kafka.resume()
    await_gone(instance.run_dir, fault)


def test_an_expired_certificate(instance: Watched, record_property: Report, tmp_path: Path) -> None:
    fault = Fault(
        "certificate gateway, listener tls", "certificate-expired", "expired", "replace the file"
    )
    files = instance.certificates
    kept = Path(files.certificate).read_bytes(), Path(files.key).read_bytes()
    ended = make_certificates(tmp_path / "ended", days=0)
    shutil.copy(ended.key, files.key)
    shutil.copy(ended.certificate, files.certificate)
    named(instance.run_dir, fault, record_property)
    Path(files.certificate).write_bytes(kept[0])
    Path(files.key).write_bytes(kept[1])
    await_gone(instance.run_dir, fault)


@pytest.mark.parametrize("moment", ["before", "while"])
def test_an_index_build_whose_worker_hangs(
    instance: Watched, record_property: Report, tmp_path: Path, moment: str
) -> None:
    name = f"by_driver_{moment}"
    fault = Fault(f"index {name}", "index-build-stands", "", f"{name}")
    definition = tmp_path / "definition.yaml"
    definition.write_text(DEFINITION.replace("NAME", name))
    for number in range(100, 120):
        instance.put(number, {"driver": "ann"})
    worker = RunDir(instance.run_dir).process("index").pid
    create = ("index", "create", str(definition), "--throttle", "1")
    if moment == "while":
        instance.command(*create)
    os.kill(worker, signal.SIGSTOP)
    try:
        if moment == "before":
            instance.command(*create)
        wait_until(
            lambda: psutil.Process(worker).status() == psutil.STATUS_STOPPED, "it has stopped"
        )
        where = f"index {name}"
        named(instance.run_dir, fault._replace(where=where), record_property)
    finally:
        os.kill(worker, signal.SIGCONT)
    await_gone(instance.run_dir, fault)
    instance.command("index", "drop", name)


def test_a_full_disk(tmp_path: Path, record_property: Report) -> None:
    fault = Fault("disk store", "disk-full", "0.0 of", "grow the file system")
    try:
        with small_disk(64 << 20) as disk:
            config = f"""
datastore: {{shards: 4, directory: {disk / "store"}}}
workers: [{{port: 0}}]
gateways: []
consoles: [{{port: 0}}]
"""
            with running(tmp_path, config) as run_dir:
                fill(disk)
                _refused_put(run_dir)
                named(run_dir, fault, record_property)
                make_room(disk)
                await_gone(run_dir, fault)
                assert cellfeed("down", "--run-dir", str(run_dir)).returncode == 0
    except NoSmallDisk as reason:
        pytest.skip(str(reason))


def _refused_put(run_dir: Path) -> None:
    port = RunDir(run_dir).process("worker").ports["http"]

    def is_refused() -> bool:
        with Client(f"http://127.0.0.1:{port}", "trips") as client:
            try:
                client.put_cell(UUID(int=1), "BASE", 1, {"large": "x" * 100_000})
            except CellfeedError:
                return True
        return False

    wait_until(is_refused, "a put is refused for the full disk")
