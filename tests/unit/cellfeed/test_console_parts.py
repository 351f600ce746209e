"""The parts of the console: looks, plots, values, and a row's life."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.operate.lag import GroupLag as TriggerLag
from cellfeed.bridge.triggers.operate.lag import ShardLag
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.console.filters import ago, moment, number, shortened
from cellfeed.console.life import row_life
from cellfeed.console.metrics import KNOWN_S, STUCK_MAX, StatusMetrics
from cellfeed.console.plot import HEIGHT, WIDTH, plot
from cellfeed.status.instance_groups import GroupLag, summary
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.looks import LOOKS_KEPT, Looks
from cellfeed.store.datastore import Datastore
from cellfeed.store.erasures import UnendedErasure
from cellfeed.store.http.server.metric_families import SERIES_MAX
from tests.support.parked import parked_cell

KEY = UUID(int=7)


def behind(cells: int) -> InstanceStatus:
    return InstanceStatus([], [], groups=[GroupLag("readers", "trips", cells, 0, None)])


# --- looks ----------------------------------------------------------------------------------------


def test_one_look_answers_everybody_for_its_time() -> None:
    reads: list[float] = []

    def read() -> InstanceStatus:
        reads.append(time.monotonic())
        return behind(len(reads))

    looks = Looks(read, every_s=60)
    askers = [threading.Thread(target=looks.latest) for _ in range(8)]
    for each in askers:
        each.start()
    for each in askers:
        each.join()
    assert len(reads) == 1
    assert looks.latest().number == 1
    fresh = Looks(read, every_s=0)
    assert fresh.latest().number == 1
    assert fresh.latest().number == 2


def test_looks_rest_longer_after_a_look_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, cpu_s, costs = 1_000.0, 0.0, [0.0]

    def read() -> InstanceStatus:
        nonlocal cpu_s
        cpu_s += costs[-1]
        return behind(1)

    monkeypatch.setattr("cellfeed.status.looks.time.monotonic", lambda: now_s)
    monkeypatch.setattr("cellfeed.status.looks.time.thread_time", lambda: cpu_s)
    for cost_s, rest_s in ((0.001, 2.0), (0.1, 3.0), (5.0, 6.0)):
        costs.append(cost_s)
        looks = Looks(read)
        assert looks.latest().number == 1
        now_s += rest_s - 0.1
        assert looks.latest().number == 1
        now_s += 0.2
        assert looks.latest().number == 2


def test_a_look_that_fails_is_shown_and_the_next_one_tries_again() -> None:
    answers: list[InstanceStatus | Exception] = [RuntimeError("no such table"), behind(3)]

    def read() -> InstanceStatus:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    looks = Looks(read, every_s=0)
    failed = looks.latest()
    assert failed.status.storage_away == "RuntimeError: no such table"
    assert [each.kind for each in failed.standing] == ["storage"]
    assert looks.latest().status.storage_away is None


def test_lag_is_kept_for_a_while_and_only_where_it_was_read() -> None:
    found = [behind(5), InstanceStatus([], [], storage_away="gone"), behind(9)]
    looks = Looks(lambda: found.pop(0), every_s=0)
    for _ in range(3):
        looks.latest()
    assert [cells for _, cells in looks.lags("readers")] == [5, 9]
    assert looks.lags("nobody") == []
    many = Looks(lambda: behind(1), every_s=0)
    for _ in range(LOOKS_KEPT + 5):
        many.latest()
    assert len(many.lags("readers")) == LOOKS_KEPT


# --- metrics --------------------------------------------------------------------------------------


def test_each_part_that_stands_still_is_a_gauge_with_its_longest_time() -> None:
    erased = UnendedErasure(str(KEY), int((time.time() - 50) * 1e6), 1, "no minion")
    found = InstanceStatus([], [], storage_away="no master", erasures=[erased])
    registry = CollectorRegistry()
    registry.register(StatusMetrics(Looks(lambda: found)))
    assert registry.get_sample_value("cellfeed_stuck_known") == 1
    assert registry.get_sample_value("cellfeed_stuck_parts") == 2
    of_storage = {"kind": "storage", "name": "datastore", "cause": "storage-away"}
    assert registry.get_sample_value("cellfeed_stuck_seconds", of_storage) == 0
    of_erasure = {"kind": "erasure", "name": str(KEY), "cause": "erasure-open"}
    assert 50 <= (registry.get_sample_value("cellfeed_stuck_seconds", of_erasure) or 0) < 100


def test_metrics_name_the_longest_parts_alone_and_nothing_from_an_old_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_us = int(time.time() * 1e6)
    erasures = [
        UnendedErasure(str(UUID(int=number)), now_us - number * 10**6, 1)
        for number in range(STUCK_MAX + 5)
    ]
    looks = Looks(lambda: InstanceStatus([], [], erasures=erasures), every_s=10**6)
    registry = CollectorRegistry()
    registry.register(StatusMetrics(looks))
    [named] = [each for each in registry.collect() if each.name == "cellfeed_stuck_seconds"]
    assert len(named.samples) == STUCK_MAX
    assert str(UUID(int=0)) not in {each.labels["name"] for each in named.samples}
    later_s = time.time() + KNOWN_S + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    assert registry.get_sample_value("cellfeed_stuck_known") == 0
    assert registry.get_sample_value("cellfeed_stuck_parts") is None


def test_consumer_groups_have_a_bounded_number_of_series() -> None:
    now_us = int(time.time() * 1e6)
    groups = [
        GroupLag(f"g{number}", "trips", number, 0, None, committed_at_us=now_us - 5 * 10**6)
        for number in range(10_000)
    ]
    registry = CollectorRegistry()
    registry.register(StatusMetrics(Looks(lambda: InstanceStatus([], [], groups=groups))))
    by_name = {each.name: each.samples for each in registry.collect()}
    records = by_name["cellfeed_group_behind_records"]
    assert len(records) == SERIES_MAX + 1
    assert sum(each.value for each in records) == sum(range(10_000))
    assert len(by_name["cellfeed_group_behind_seconds"]) == SERIES_MAX + 1
    assert all(5 <= each.value < 60 for each in by_name["cellfeed_group_behind_seconds"])


# --- plots and values -----------------------------------------------------------------------------


def test_a_plot_is_a_line_within_its_box() -> None:
    assert plot([]) is None
    assert plot([(1.0, 5)]) is None
    drawn = plot([(10.0, 0), (15.0, 8), (20.0, 4)])
    assert drawn is not None
    assert (drawn.most, drawn.span_s) == (8, 10.0)
    points = [tuple(map(float, each.split(","))) for each in drawn.points.split()]
    assert [x for x, _ in points] == [0, WIDTH / 2, WIDTH]
    assert [y for _, y in points] == [HEIGHT - 1, 1, HEIGHT / 2]
    flat = plot([(1.0, 0), (1.0, 0)])
    assert flat is not None
    assert flat.most == 0


def test_values_are_printed_for_people() -> None:
    assert (number(None), number(12_345), number(1.25)) == ("", "12,345", "1.2")
    now_us = int(time.time() * 1e6)
    assert (ago(0), ago(now_us + 10**9)) == ("", "0 s")
    assert ago(now_us - 7_200 * 10**6) == "2.0 h"
    assert (moment(0), moment(1_000_000)) == ("", "1970-01-01T00:00:01+00:00")
    assert shortened(b'"short"') == '"short"'
    assert len(shortened(b'"' + b"x" * 999 + b'"')) == 401


# --- a row's life ---------------------------------------------------------------------------------


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Opened]:
    with Datastore.open_embedded(tmp_path, shards=2) as datastore:
        yield Opened(
            Config(datastore=DatastoreConfig(shards=2)),
            datastore,
            StoreCoordinator(datastore.state),
        )


def test_each_cell_of_a_row_says_which_readers_have_passed_it(instance: Opened) -> None:
    datastore = instance.datastore
    shard = datastore.shard_of(KEY)
    for ref_key in (1, 2, 3):
        datastore.put_cell(KEY, "BASE", ref_key, {"n": ref_key})
    lag = ShardLag(shard, 2, 3, 1, 1.0, "w", 0, "busy")
    billing = TriggerLag("billing", "trips", 1, 1.0, 1, ["w"], "", [lag])
    cell = parked_cell(shard, 0, row_key=str(KEY), attempts=2)
    datastore.state.commit(dict(ParkedCells(datastore.state).entry(cell)))
    instance.coordinator.commit_offsets("readers", {("trips", shard): CommittedOffset(1)})
    found = InstanceStatus(
        [], [], triggers=[billing], groups=[GroupLag("readers", "trips", 2, 0, None)]
    )
    life = row_life(instance, found, KEY)
    assert [each.cell.ref_key for each in life.cells] == [1, 2, 3]
    assert not life.more
    shown = [{(stop.kind, stop.passed, stop.remark) for stop in each.stops} for each in life.cells]
    assert shown == [
        {("trigger", True, "parked"), ("group", True, "")},
        {("trigger", True, ""), ("group", False, "")},
        {("trigger", False, ""), ("group", False, "")},
    ]
    assert row_life(instance, found, UUID(int=8)).cells == []


# --- a group as JSON ------------------------------------------------------------------------------


def test_a_groups_summary_has_its_reasons_and_null_for_none() -> None:
    group = TriggerLag("billing", "trips", 5, 1.5, 2, ["w"], "", [])
    said = summary(group)
    assert [said[each] for each in ("cells_behind", "parked", "shards_without_worker")] == [5, 2, 0]
    reasons = ("waits_because", "takes_nothing", "away_because")
    assert [said[each] for each in reasons] == [None, None, None]
    for reason in reasons:
        assert summary(structs.replace(group, **{reason: "no room"}))[reason] == "no room"
