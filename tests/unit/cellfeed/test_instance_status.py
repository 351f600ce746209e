"""The report of ``status`` on an instance whose parts are there, away or behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import typer
from msgspec import structs

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.cli.output import console
from cellfeed.cli.status import _print_backups, status
from cellfeed.config.model import (
    BackupsConfig,
    ChecksConfig,
    Config,
    DatastoreConfig,
)
from cellfeed.instance.config_file import write_config
from cellfeed.processes.reports import ProcessEntry
from cellfeed.run_dir import RunDir
from cellfeed.status import care, instance_status
from cellfeed.status.instance_groups import GatewayAmongOthers
from cellfeed.status.instance_status import InstanceStatus, read_status
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import NotFound, StorageUnavailable

CONFIG = Config(
    datastore=DatastoreConfig(shards=4),
    backups=[BackupsConfig("backups", every_s=60)],
    checks=ChecksConfig(),
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.make()
    write_config(CONFIG, made.config)
    return made


@pytest.fixture
def store(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[Datastore]:
    """The datastore of the instance, with ten cells; ``status`` opens it."""
    with Datastore.open_embedded(directory.path / "store", shards=4) as opened:

        @contextmanager
        def as_opened(
            config: Config, *_: Any
        ) -> Iterator[tuple[Config, Datastore, StoreCoordinator]]:
            yield config, opened, StoreCoordinator(opened.state)

        monkeypatch.setattr(instance_status, "opened", as_opened)
        for number in range(10):
            opened.put_cell(UUID(int=number), "BASE", 1, {})
        yield opened


def printed(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """The command's output, and its exit code."""
    monkeypatch.setattr(console, "width", 500, raising=False)
    code = 0
    with console.capture() as said:
        try:
            status(directory.path)
        except typer.Exit as ended:
            code = ended.exit_code
    return said.get(), code


def test_status_shows_processes_up_or_down_and_the_reason_of_those_that_never_started(
    directory: RunDir, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    del store
    directory.record(ProcessEntry("worker", "worker", os.getpid(), {"http": 8080}, "w.log"))
    directory.say_ready("worker", {"http": 8080})
    directory.record(ProcessEntry("gateway", "gateway", 2**22 + 1, {}, "g.log"))
    directory.say_missing("backups", "the disk is full")
    found = read_status(directory, CONFIG, {"backups": "backups"})
    assert {each["name"]: each["up"] for each in found.processes} == {
        "worker": True,
        "gateway": False,
    }
    assert found.missing == [{"name": "backups", "kind": "backups", "reason": "the disk is full"}]
    text, code = printed(directory, monkeypatch)
    assert code == 0
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "up" in lines["worker"]
    assert "http 8080" in lines["worker"]
    assert "down" in lines["gateway"]
    assert "backups could not be started, and is tried again: the disk is full" in text


def test_the_log_of_each_shard_and_the_groups_behind_it_are_shown(
    directory: RunDir, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = store.heads()
    done, behind = max(heads, key=lambda shard: heads[shard].watermark), 0
    StoreCoordinator(store.state).commit_offsets(
        "readers", {("trips", done): CommittedOffset(heads[done].watermark)}
    )
    behind = 10 - heads[done].watermark
    found = read_status(directory, CONFIG)
    assert found.heads == heads
    assert list(found.heads) == [0, 1, 2, 3]
    [lag] = found.groups
    assert (lag.group, lag.topic, lag.behind, lag.parked, lag.at_most) == (
        "readers",
        "trips",
        behind,
        0,
        False,
    )
    assert found.as_json()["groups"] == [vars(lag)]
    text, _ = printed(directory, monkeypatch)
    assert f"trips: 10 cells in 4 shards; watermarks 0:{heads[0].watermark} " in text
    assert "readers" in text


def test_status_shows_that_backups_and_the_check_have_not_run_yet(
    directory: RunDir, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    del store
    found = read_status(directory, CONFIG)
    [backup] = found.backups
    assert (backup["name"], backup["age_s"], backup["every_s"]) == ("backups", None, 60)
    assert backup["directory"] == str(directory.path / "backups")
    assert found.check is not None
    assert (found.check["age_s"], found.check["damaged"]) == (None, 0)
    text, _ = printed(directory, monkeypatch)
    assert "backups: no whole backup yet, in " in text
    assert "check for damage: no whole one yet" in text
    without = Config(datastore=CONFIG.datastore, checks=None)
    assert read_status(directory, without).check is None


def test_while_the_storage_is_away_status_shows_the_rest_and_reports_that(
    directory: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise StorageUnavailable("no master of c1")

    monkeypatch.setattr(instance_status, "opened", away)
    directory.record(ProcessEntry("worker", "worker", os.getpid(), {}, "w.log"))
    found = read_status(directory, CONFIG)
    assert found.storage_away == "no master of c1"
    assert (len(found.processes), len(found.backups), found.heads) == (1, 1, {})
    text, code = printed(directory, monkeypatch)
    assert code == 1
    assert "the storage is away: no master of c1" in text


def test_while_the_coordination_is_away_status_shows_logs_and_no_groups(
    directory: RunDir, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    StoreCoordinator(store.state).commit_offsets("readers", {("trips", 0): CommittedOffset(1)})

    def away(_reader: LagReader) -> list[str]:
        raise StorageUnavailable("no ZooKeeper")

    monkeypatch.setattr(LagReader, "groups", away)
    found = read_status(directory, CONFIG)
    assert (found.coordination_away, found.groups, found.storage_away) == ("no ZooKeeper", [], None)
    assert found.heads == store.heads()
    text, code = printed(directory, monkeypatch)
    assert code == 0
    assert "coordination is away, so nothing is known of groups: no ZooKeeper" in text


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not the run directory of an instance"):
        status(tmp_path)


@pytest.mark.parametrize(
    ("age_s", "is_red"), [(None, True), (179.0, False), (180.0, False), (181.0, True)]
)
def test_a_recovery_point_is_late_from_three_times_its_interval_on(
    monkeypatch: pytest.MonkeyPatch, age_s: float | None, is_red: bool
) -> None:
    styles: list[Any] = []
    monkeypatch.setattr(console, "print", lambda *_, style=None, **__: styles.append(style))
    backup: dict[str, Any] = {
        "name": "backups",
        "directory": "b",
        "recovery_point": "b-1",
        "age_s": age_s,
        "every_s": 60.0,
        "error": None,
        "damaged": {},
        "binlogs": {},
    }
    _print_backups(InstanceStatus([], [], backups=[backup]))
    assert styles == ["red" if is_red else None]


def test_json_has_every_field_that_can_be_learnt(
    directory: RunDir, store: Datastore, capsys: pytest.CaptureFixture[str]
) -> None:
    status(directory.path, as_json=True)
    said = json.loads(capsys.readouterr().out)
    learnt = {each.name for each in fields(InstanceStatus)}
    assert set(said) == (learnt - {"heads"}) | {"shards"}
    assert {shard: head["watermark"] for shard, head in said["shards"].items()} == {
        str(shard): head.watermark for shard, head in store.heads().items()
    }


def test_faults_of_backups_and_archives_are_printed_line_by_line(
    directory: RunDir, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = {
        "name": "nightly",
        "directory": "/backups",
        "recovery_point": "20260301T120000Z-3f9a",
        "age_s": 30.0,
        "every_s": 60,
        "error": "the disk is full",
        "damaged": {"20260228T120000Z-77aa": "a digest differs"},
        "binlogs": {
            "eu": {"age_s": 1.0, "gap": "from 5 to 9", "error": None},
            "us": {"age_s": None, "gap": None, "error": "no server answers"},
        },
    }
    monkeypatch.setattr(instance_status, "backups_status", lambda *_: [point])
    said, code = printed(directory, monkeypatch)
    assert code == 0
    lines = [line.strip() for line in said.splitlines() if line.startswith("nightly: ")]
    assert lines == [
        "nightly: the recovery point is 30 s old, 20260301T120000Z-3f9a, in /backups (one every"
        " 60 s)",
        "nightly: the last attempt failed: the disk is full",
        "nightly: 20260228T120000Z-77aa is damaged: a digest differs",
        "nightly: the binlog of cluster eu had a gap, which the next backup closes: from 5 to 9",
        "nightly: the binlog of cluster us is not archived: no server answers",
    ]


def test_gateways_that_run_are_shown_and_why_their_groups_wait_though_none_is_configured(
    directory: RunDir, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def why_stopped(*given: object) -> str:
        asked.append(given)
        return "the offsets were lost"

    monkeypatch.setattr(instance_status, "why_stopped", why_stopped)
    without = structs.replace(CONFIG, gateways=[])
    assert read_status(directory, without).consumers_wait is None
    assert asked == [], "nobody serves consumer groups"
    one = GatewayAmongOthers("g1", 1, {"": "127.0.0.1:9092"}, "127.0.0.1:8081", [3, 5])
    monkeypatch.setattr(instance_status, "living_gateways", lambda *_: [one])
    monkeypatch.setattr(instance_status, "clusters_status", lambda _: [{"name": "eu"}])
    found = read_status(directory, without)
    assert (found.gateways, found.consumers_wait) == ([one], "the offsets were lost")
    assert found.clusters == [{"name": "eu"}]
    monkeypatch.setattr(instance_status, "living_gateways", lambda *_: [])
    assert read_status(directory, CONFIG).consumers_wait == "the offsets were lost"


def test_a_running_check_shows_its_duration(
    directory: RunDir, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_us = store.state.now_us() - 5_000_000
    under_way = SimpleNamespace(place="the log", shard=2, cells=7, begun_at_us=begun_us)
    passes = SimpleNamespace(found=None, under_way=under_way, last=None, age_s=lambda _: None)
    monkeypatch.setattr(care, "passes_of", lambda _: passes)
    check = read_status(directory, CONFIG).check
    assert check is not None
    assert check["under_way"] | {"age_s": 0} == {
        "place": "the log",
        "shard": 2,
        "cells": 7,
        "age_s": 0,
    }
    assert 5 <= check["under_way"]["age_s"] < 3_600
