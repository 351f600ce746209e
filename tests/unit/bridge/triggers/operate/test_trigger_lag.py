"""Lag is exact and 0 when idle; every shard has a reason, from whichever process knows it; a look
costs the same for any number of shards."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.control import Control
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.groups.progress_records import (
    RECORD_SHARDS,
    Progress,
    worker_record,
    worker_records,
)
from cellfeed.bridge.groups.progress_reporter import ProgressReporter
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets
from cellfeed.bridge.triggers.operate.lag import GroupLag, LagReader
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.shard.take_over import TakeOver
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import InvalidRequest
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

pytestmark = pytest.mark.usefixtures("quick_looks")

BY = Operator("somebody@here", "a look at the fares")


def read(datastore: Datastore, coordinator: Coordinator) -> GroupLag:
    return LagReader(datastore, coordinator).read(GROUP)


def reasons(lag: GroupLag) -> set[str]:
    return {each.because for each in lag.shards}


def test_an_idle_trigger_is_not_behind_also_when_the_last_cells_are_of_other_columns(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder = Recorder()
    with working(datastore, coordinator, recorder):
        put(datastore, range(20))
        put(datastore, range(20, 60), "NOTES")
        wait_until(lambda: offsets(coordinator) == ends(datastore), "it has come past all of them")
        wait_until(
            lambda: all(
                each.because == f"came to {each.watermark - 1}"
                for each in read(datastore, coordinator).shards
            ),
            "it has told so",
        )
        lag = read(datastore, coordinator)
    assert (lag.cells, lag.seconds, lag.workers, lag.waits_because, lag.without_worker) == (
        0,
        0.0,
        ["w"],
        "",
        0,
    )
    assert all(
        (each.cells, each.seconds, each.owner) == (0, 0.0, "w") and each.progress_us
        for each in lag.shards
    )
    assert lag.about is not None
    assert lag.about.column == "BASE"
    assert len(recorder.cells) == 20


def test_cells_behind_are_those_from_the_offset_on_and_seconds_the_age_of_the_first(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    put(datastore, range(60))
    end = ends(datastore)
    coordinator.commit_offsets(
        GROUP,
        {
            ("trips", 0): CommittedOffset(3),
            ("trips", 1): CommittedOffset(end[1]),
            ("elsewhere", 2): CommittedOffset(1),
        },
    )
    before_us = datastore.state.now_us()
    lag = read(datastore, coordinator)
    after_us = datastore.state.now_us()
    assert {each.shard: each.cells for each in lag.shards} == {
        0: end[0] - 3,
        1: 0,
        2: end[2],
        3: end[3],
    }
    assert lag.cells == sum(each.cells for each in lag.shards)
    for each in lag.shards:
        if each.cells:
            [first] = datastore.engine.scan(each.shard, each.offset or 0, 1)
            assert each.seconds is not None
            assert (
                (before_us - first.created_at_us) / 1e6
                <= each.seconds
                <= (after_us - first.created_at_us) / 1e6
            )
    assert lag.seconds == max(each.seconds or 0.0 for each in lag.shards)
    assert lag.shards[1].seconds == 0.0


def test_a_look_with_a_bound_reads_the_cells_that_have_waited_for_longest_first(
    datastore: Datastore,
) -> None:
    put(datastore, range(60))
    coordinator = StoreCoordinator(datastore.state)
    for shard in (2, 0, 3, 1):
        coordinator.commit_offsets(GROUP, {("trips", shard): CommittedOffset(1)})
    reader = LagReader(datastore, coordinator)
    known = [
        {each.shard for each in reader.read(GROUP, looks_max=1).shards if each.seconds is not None}
        for _ in range(4)
    ]
    assert known == [{2}, {0, 2}, {0, 2, 3}, {0, 1, 2, 3}]


def test_the_reason_of_a_shard_without_a_worker_has_its_beginning(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    put(datastore, range(10))
    assert reasons(read(datastore, coordinator)) == {
        "no worker has ever had it: start one with cellfeed triggers run"
    }
    recorder = Recorder()
    with working(datastore, coordinator, recorder, "first"):
        wait_until(lambda: len(recorder.cells) == 10, "it works")
    lag = read(datastore, coordinator)
    assert all(
        each.because.startswith("no worker has it since 20")
        and "when first left as the last one" in each.because
        for each in lag.shards
    )
    assert (lag.without_worker, lag.workers) == (4, [])
    # One that died without a word.
    membership = Membership(coordinator, GROUP, "dead", 0.3)
    TakeOver(
        recorder.trigger, datastore, coordinator, ParkedCells(datastore.state), membership
    ).take(membership.session, range(3))
    teller = ProgressReporter(datastore.state, GROUP, "dead", "BASE", "record")
    teller.report(None, {0: Progress(location=3, because="came to 2")})
    wait_until(lambda: coordinator.members(GROUP) == [], "its lease runs out")
    lag = read(datastore, coordinator)
    assert all(
        each.because.startswith("no worker has it since 20")
        and "dead is gone without a word" in each.because
        for each in lag.shards[:3]
    )
    assert "when first left as the last one" in lag.shards[3].because
    assert lag.without_worker == 4


def test_a_cell_that_does_not_end_or_fails_is_the_reason_of_its_shard(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder, go_on = Recorder(), threading.Event()

    def hang(cell: Any) -> None:
        if cell.shard == 1:
            go_on.wait(60)
        if cell.shard == 2:
            raise ValueError("no")

    recorder.before = hang
    try:
        with working(datastore, coordinator, recorder):
            put(datastore, range(40))
            wait_until(
                lambda: read(datastore, coordinator).shards[1].cells == ends(datastore)[1],
                "the shard hangs",
            )
            wait_until(
                lambda: read(datastore, coordinator).shards[0].because.startswith("came to "),
                "the others continue",
            )
            assert read(datastore, coordinator).shards[1].owner == "w"
            wait_until(
                lambda: (
                    "cell 0 has been running since 20"
                    in read(datastore, coordinator).shards[1].because
                ),
                "it says in which cell",
            )
            wait_until(lambda: read(datastore, coordinator).parked > 0, "what fails is parked")
            Control(datastore.state, GROUP).pause(BY)
            wait_until(
                lambda: read(datastore, coordinator).without_worker == 3, "the others stand aside"
            )
            because = read(datastore, coordinator).shards[1].because
            assert because.startswith("paused by somebody@here since 20")
            assert "because a look at the fares; w has not ended its cell: " in because
            go_on.set()
            wait_until(lambda: read(datastore, coordinator).without_worker == 4, "and the last one")
            Control(datastore.state, GROUP).resume(BY)
            wait_until(lambda: read(datastore, coordinator).cells == 0, "all work continues")
    finally:
        go_on.set()


def test_a_stopped_or_paused_trigger_is_the_reason_of_every_shard(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    ParkedCells(datastore.state).stop(GROUP, "100 cells are parked")
    lag = read(datastore, coordinator)
    assert (
        lag.waits_because
        == f"stopped: 100 cells are parked; resume it: cellfeed parked resume {GROUP}"
    )
    assert reasons(lag) == {lag.waits_because}
    Control(datastore.state, GROUP).pause(BY)
    assert reasons(read(datastore, coordinator)) == {str(Control(datastore.state, GROUP).paused())}


def test_offsets_kept_while_zookeeper_is_away_count_as_soon_as_it_is_back(
    datastore: Datastore, tree: ZooKeeperTree
) -> None:
    recorder = Recorder()
    with (
        closing(open_coordination("zookeeper", datastore, tree)) as theirs,
        closing(open_coordination("zookeeper", datastore, tree)) as mine,
    ):
        with working(datastore, theirs, recorder):
            wait_until(
                lambda: len(KeptOffsets(datastore.state, GROUP, "trips").kept()) == 4,
                "it has begun on the shards",
            )
            tree.go_away()
            put(datastore, range(40))
            wait_until(lambda: len(recorder.cells) == 40, "work continues")
        tree.come_back()
        assert sum(offsets(mine).values()) == 0
        assert read(datastore, mine).cells == 0


def test_while_zookeeper_is_away_a_triggers_progress_is_read_from_its_workers(
    datastore: Datastore, tree: ZooKeeperTree
) -> None:
    recorder = Recorder()
    with (
        closing(open_coordination("zookeeper", datastore, tree)) as theirs,
        closing(open_coordination("zookeeper", datastore, tree)) as mine,
    ):
        with working(datastore, theirs, recorder):
            put(datastore, range(40))
            wait_until(lambda: offsets(mine) == ends(datastore), "all cells are run")
            wait_until(
                lambda: all(
                    each.because.startswith("came to") for each in read(datastore, mine).shards
                ),
                "it has told so",
            )
            tree.go_away()
            # Its last report may be of a moment before the last cells; it continues telling.
            wait_until(lambda: read(datastore, mine).cells == 0, "it has told of all cells")
            lag = read(datastore, mine)
            assert lag.away_because.startswith("the coordination is away: ")
            assert (lag.cells, lag.workers, lag.without_worker) == (0, ["w"], 0)
            put(datastore, range(40, 60))
            wait_until(
                lambda: read(datastore, mine).cells == 0 and len(recorder.cells) == 60,
                "it continues, and reports",
            )
            assert all("came to" in each.because for each in read(datastore, mine).shards)
        lag = read(datastore, mine)
        assert lag.cells == 0, "what it kept is known"
        assert reasons(lag) == {lag.away_because}
        tree.come_back()


def test_a_live_worker_without_reports_is_a_reason(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = StoreCoordinator(datastore.state)
    membership = Membership(coordinator, GROUP, "mute", 600)
    TakeOver(
        Recorder().trigger, datastore, coordinator, ParkedCells(datastore.state), membership
    ).take(membership.session, range(4))
    assert reasons(read(datastore, coordinator)) == {"mute has it and has not reported it yet"}
    ProgressReporter(datastore.state, GROUP, "mute", "BASE", "record").report(
        None, {shard: Progress(3, because="came to 2") for shard in range(4)}
    )
    assert reasons(read(datastore, coordinator)) == {"came to 2"}
    now_us = datastore.state.now_us()
    monkeypatch.setattr(datastore.state, "now_us", lambda: now_us + 90_000_000)
    [because] = reasons(read(datastore, coordinator))
    assert because.startswith("mute has said nothing since 20")
    assert because.endswith("then: came to 2")


def test_lost_offsets_are_the_reason_with_the_remedies(
    datastore: Datastore, tree: ZooKeeperTree
) -> None:
    recorder = Recorder()
    with closing(open_coordination("zookeeper", datastore, tree)) as coordinator:
        with working(datastore, coordinator, recorder):
            put(datastore, range(10))
            wait_until(lambda: offsets(coordinator) == ends(datastore), "it works")
        coordinator.delete_offsets(GROUP)
        because = read(datastore, coordinator).waits_because
    assert because.startswith(
        "stands still: the offsets of 4 shards that it has worked on are gone"
    )
    assert f"cellfeed offsets set {GROUP} kept|earliest|latest" in because


def test_a_worker_reports_only_changes_and_at_most_once_a_second(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("cellfeed.bridge.groups.progress_reporter.time.monotonic", lambda: now_s)
    teller = ProgressReporter(datastore.state, GROUP, "w", "BASE", "record")
    key = f"triggers/{GROUP}/workers/w"

    def version() -> int:
        entry = datastore.state.get(key)
        assert entry is not None
        return entry.version

    shards = {
        0: Progress(5, because="came to 4"),
        1: Progress(7, because="cell 7 failed 2 times"),
        2: Progress(1, because="came to 0"),
    }
    teller.report(None, shards)
    first = version()
    assert not teller.is_due()
    now_s += 1.0
    assert teller.is_due()
    teller.report(None, shards)
    assert version() == first, "nothing had changed"
    shards[0].location, shards[0].because = 6, "came to 5"
    teller.report(None, shards)
    assert version() > first
    entry = datastore.state.get(key)
    assert entry is not None
    record = worker_record(entry)
    assert [record.reason(shard) for shard in range(3)] == [
        "came to 5",
        "cell 7 failed 2 times",
        "came to 0",
    ]
    assert len(record.reasons) == 1, "what follows from the location is not written"
    second = version()
    now_s += 15.0
    teller.report(None, shards)
    assert version() > second, "one that has nothing new says so now and then"
    teller.leave()
    assert datastore.state.get(key) is None


def group_entries(datastore: Datastore) -> dict[str, StateEntry]:
    prefix = f"triggers/{GROUP}/"
    return {entry.key.removeprefix(prefix): entry for entry in datastore.state.list(prefix)}


def test_records_with_a_reason_for_each_of_thousands_of_shards_fit_and_are_read_as_one(
    datastore: Datastore,
) -> None:
    shards = {
        shard: Progress(shard, because=f"cell {shard} failed: {'x' * 400}")
        for shard in range(2 * RECORD_SHARDS + 10)
    }
    shards[5] = Progress(7, because="came to 6")
    first = ProgressReporter(datastore.state, GROUP, "w/1", "BASE", "record")
    first.report(None, shards, "the assignment cannot be read")
    assert len(group_entries(datastore)) == 4, "three records and what the trigger is"
    [(member, record)] = worker_records(group_entries(datastore)).items()
    assert member == "w/1"
    assert record.shards.keys() == shards.keys()
    assert record.takes_nothing == "the assignment cannot be read"
    assert record.reason(5) == "came to 6"
    for shard in (0, 499, RECORD_SHARDS, 2 * RECORD_SHARDS + 9):
        assert record.reason(shard).startswith(f"cell {shard} failed: xxx")
    assert record.reason(RECORD_SHARDS - 1) == (
        "one of more than 500 different reasons: the worker's log has it"
    )
    again = ProgressReporter(datastore.state, GROUP, "w/1", "BASE", "record")
    again.report(None, {3: Progress(1)})
    [record] = worker_records(group_entries(datastore)).values()
    assert record.shards.keys() == {3}, "nothing is left of the process before"
    first.leave()
    assert not worker_records(group_entries(datastore))


def test_while_no_leader_can_assign_shards_their_reason_names_that(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = StoreCoordinator(datastore.state)

    def refuse(*_: object) -> None:
        raise InvalidRequest("the value of state key 'groups/x' has 2000000 bytes")

    monkeypatch.setattr(coordinator, "assign", refuse)
    with working(datastore, coordinator, Recorder()):
        wait_until(lambda: read(datastore, coordinator).takes_nothing != "", "it has reported")
        lag = read(datastore, coordinator)
    why = "w takes and assigns no shards: the value of state key 'groups/x' has 2000000 bytes"
    assert lag.takes_nothing == why
    assert reasons(lag) == {f"no worker has it just now: it is being assigned to one of w; {why}"}
    assert read(datastore, coordinator).takes_nothing == "", "the worker has left"


@pytest.mark.parametrize("shards", [4, 4096])
def test_a_look_takes_the_same_few_reads_for_any_number_of_shards(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Datastore.open_embedded(tmp_path / "many", shards=shards) as datastore:
        coordinator = StoreCoordinator(datastore.state)
        membership = Membership(coordinator, GROUP, "w", 600)
        runs = TakeOver(
            Recorder().trigger, datastore, coordinator, ParkedCells(datastore.state), membership
        ).take(membership.session, range(shards))
        teller = ProgressReporter(datastore.state, GROUP, "w", "BASE", "record")
        teller.report(None, {shard: run.progress for shard, run in runs.items()})
        entry = datastore.state.get(f"triggers/{GROUP}/workers/w")
        assert entry is not None
        assert len(entry.value) < 16 * shards + 100
        reads: Counter[str] = Counter()
        for owner, name in (
            (datastore.state, "get"),
            (datastore.state, "list"),
            (datastore.engine, "heads"),
            (datastore.engine, "scan_many"),
        ):
            monkeypatch.setattr(owner, name, _counted(reads, name, getattr(owner, name)))
        lag = LagReader(datastore, coordinator).read(GROUP)
        assert len(lag.shards) == shards
        assert reads["heads"] == 1
        assert reads["scan_many"] == 0
        assert reads["get"] + reads["list"] <= 12


def _counted(reads: Counter[str], name: str, call: Any) -> Any:
    def counted(*arguments: Any, **options: Any) -> Any:
        reads[name] += 1
        return call(*arguments, **options)

    return counted
