"""Gauges of triggers: the lag's figures, looked up in the background, and nothing old while nobody
can say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.control import Control
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.triggers.operate.lag import GroupLag, LagReader
from cellfeed.bridge.triggers.operate.metrics import TriggerMetrics
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.metric_families import OTHERS, SERIES_MAX
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.trigger_workers import (
    GROUP,
    Recorder,
    ends,
    offsets,
    open_coordination,
    put,
    working,
)
from tests.support.waiting import wait_until


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=4) as opened:
        yield opened


def scrape(metrics: TriggerMetrics) -> dict[str, float]:
    """Every sample of one scrape, by its name and labels."""
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_every_trigger_that_has_run_has_gauges(datastore: Datastore) -> None:
    coordinator, recorder = StoreCoordinator(datastore.state), Recorder()
    with working(datastore, coordinator, recorder):
        put(datastore, range(10))
        wait_until(lambda: offsets(coordinator) == ends(datastore), "all cells are run")
    put(datastore, range(10, 30))
    coordinator.commit_offsets("a consumer", {("trips", 0): CommittedOffset(0)})
    Control(datastore.state, GROUP).pause(Operator("somebody@here", "why"))
    told = scrape(TriggerMetrics(datastore, coordinator))
    assert told.pop(f'cellfeed_trigger_seconds_behind{{group="{GROUP}"}}') > 0
    assert told == {
        "cellfeed_triggers_known": 1.0,
        f'cellfeed_trigger_cells_behind{{group="{GROUP}"}}': 20.0,
        f'cellfeed_trigger_parked_cells{{group="{GROUP}"}}': 0.0,
        f'cellfeed_trigger_workers{{group="{GROUP}"}}': 0.0,
        f'cellfeed_trigger_shards_without_worker{{group="{GROUP}"}}': 4.0,
        f'cellfeed_trigger_stands_still{{group="{GROUP}"}}': 1.0,
    }


def test_one_look_answers_the_scrapes_of_a_few_seconds(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, looks = StoreCoordinator(datastore.state), []
    Control(datastore.state, GROUP).pause(Operator("somebody@here", "why"))
    read = LagReader.read

    def counted(self: LagReader, group: str, *, looks_max: int | None = None) -> GroupLag:
        looks.append(group)
        return read(self, group, looks_max=looks_max)

    monkeypatch.setattr(LagReader, "read", counted)
    metrics = TriggerMetrics(datastore, coordinator, look_every_s=3600)
    first = scrape(metrics)
    assert [scrape(metrics) for _ in range(5)] == [first] * 5
    assert looks == [GROUP]


def test_while_the_coordination_is_away_metrics_report_that_and_show_no_old_figure(
    datastore: Datastore,
) -> None:
    tree = ZooKeeperTree()
    Control(datastore.state, GROUP).pause(Operator("somebody@here", "why"))
    with closing(open_coordination("zookeeper", datastore, tree)) as coordinator:
        metrics = TriggerMetrics(datastore, coordinator, look_every_s=0, wait_s=0.2)
        wait_until(lambda: scrape(metrics)["cellfeed_triggers_known"] == 1, "the first look")
        tree.go_away()
        wait_until(lambda: scrape(metrics) == {"cellfeed_triggers_known": 0.0}, "it is noticed")
        tree.come_back()
        wait_until(lambda: len(scrape(metrics)) > 1, "it is back")


def test_a_look_that_hangs_delays_no_scrape(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(LagReader, "groups", lambda _: [] * go_on.wait(60))
    metrics = TriggerMetrics(datastore, StoreCoordinator(datastore.state), wait_s=0.05)
    try:
        assert [scrape(metrics) for _ in range(3)] == [{"cellfeed_triggers_known": 0.0}] * 3
        assert sum(thread.name == "trigger-metrics" for thread in threading.enumerate()) == 1, (
            "one look at a time"
        )
    finally:
        go_on.set()
    wait_until(lambda: scrape(metrics) == {"cellfeed_triggers_known": 1.0}, "it ends")


def test_of_ten_thousand_groups_those_most_behind_have_series_and_the_others_one(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lag(self: LagReader, group: str, *, looks_max: int | None = None) -> GroupLag:
        number = int(group.removeprefix("g"))
        return GroupLag(group, "trips", number, float(number), 1, ["w"], "paused", [])

    monkeypatch.setattr(LagReader, "groups", lambda _: [f"g{number}" for number in range(10_000)])
    monkeypatch.setattr(LagReader, "read", lag)
    metrics = TriggerMetrics(datastore, StoreCoordinator(datastore.state), wait_s=60)
    told = scrape(metrics)
    series = [name for name in told if name.startswith("cellfeed_trigger_cells_behind")]
    assert len(series) == SERIES_MAX + 1
    assert told['cellfeed_trigger_cells_behind{group="g9999"}'] == 9_999
    rest = range(10_000 - SERIES_MAX)
    assert told[f'cellfeed_trigger_cells_behind{{group="{OTHERS}"}}'] == sum(rest)
    assert told[f'cellfeed_trigger_seconds_behind{{group="{OTHERS}"}}'] == rest[-1]
    assert told[f'cellfeed_trigger_parked_cells{{group="{OTHERS}"}}'] == len(rest)
    assert told[f'cellfeed_trigger_stands_still{{group="{OTHERS}"}}'] == 1
