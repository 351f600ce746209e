"""Waiting for triggers and indexes that really work, over either coordination."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.outlets.find import outlets
from cellfeed.bridge.outlets.groups import GroupOutlet
from cellfeed.bridge.triggers.operate.reset import Reset
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.shard import position
from cellfeed.store.cells.cell import Cell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.token import Places, Token
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable, WaitTimedOut
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from cellfeed.store.indexes.definition import IndexColumn, IndexDefinition, IndexField
from cellfeed.store.waits import watched_outlet
from cellfeed.store.waits.waiting import Passed, Place, PlaceRange
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.kept_index import index_worker, made_index
from tests.support.parked import parked_cell
from tests.support.trigger_workers import (
    COORDINATIONS,
    GROUP,
    LEASE_S,
    Recorder,
    offsets,
    open_coordination,
    working,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_looks")

BY = Operator("somebody@here", "a test")
BY_DRIVER = IndexDefinition(
    "by_driver", "trips", [IndexColumn("BASE", [IndexField("driver", ["driver"], "string")])]
)


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=2) as opened:
        yield opened


@pytest.fixture
def tree() -> ZooKeeperTree:
    return ZooKeeperTree()


@pytest.fixture(params=COORDINATIONS)
def coordinator(
    request: pytest.FixtureRequest, datastore: Datastore, tree: ZooKeeperTree
) -> Iterator[Coordinator]:
    with closing(open_coordination(request.param, datastore, tree)) as opened:
        datastore.waits.find = outlets(datastore, opened)
        yield opened


def put(datastore: Datastore, count: int) -> list[PutResult]:
    return datastore.put_cells(
        [(uuid4(), "BASE", number, {"driver": "ann"}) for number in range(count)]
    )


def places(results: list[PutResult]) -> set[tuple[int, int]]:
    return {
        (result.shard, result.added_id)
        for result in results
        if result.shard is not None and result.added_id is not None
    }


def test_a_trigger_that_is_waited_for_has_run_the_cells(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder = Recorder()
    with working(datastore, coordinator, recorder):
        wait_until(lambda: len(offsets(coordinator)) == 2, "both shards are begun")
        for _ in range(30):
            results = put(datastore, 3)
            assert datastore.wait_for(results, trigger=GROUP, timeout_s=20).handled
            assert places(results) <= set(recorder.cells)


def test_a_cell_that_a_trigger_cannot_run_is_reported_as_parked(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder = Recorder()
    [bad, good] = [*put(datastore, 1), *put(datastore, 1)]
    [bad_place] = places([bad])

    def refuse(cell: Cell) -> None:
        if (cell.shard, cell.added_id) == bad_place:
            raise ValueError("this one not")

    recorder.before = refuse
    with working(datastore, coordinator, recorder):
        wait_until(lambda: len(offsets(coordinator)) == 2, "both shards are begun")
        passed = datastore.wait_for([good, bad], trigger=GROUP, timeout_s=20)
        assert passed.parked == [Place(*bad_place)]
        assert datastore.wait_for(good, trigger=GROUP, timeout_s=20).handled
        ParkedCells(datastore.state).skip(GROUP, "{}/{}".format(*bad_place), "enough")
        given_up = datastore.wait_for(bad, trigger=GROUP, timeout_s=20)
        assert given_up.parked == []
        assert given_up.skipped == [PlaceRange(*bad_place, bad_place[1])]


def test_a_trigger_that_was_moved_past_a_cell_has_skipped_it_and_one_moved_back_has_not_passed(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder = Recorder()
    with working(datastore, coordinator, recorder):
        wait_until(lambda: len(offsets(coordinator)) == 2, "both shards are begun")
    results = put(datastore, 6)
    token = Token.of(results)
    ends = {shard: head.watermark for shard, head in datastore.heads().items()}

    Reset(datastore, coordinator, GROUP, BY).run(ends, lease_s=LEASE_S)
    passed = datastore.wait_for(token, trigger=GROUP)
    assert {(each.shard, each.last) for each in passed.skipped} == {
        (each.shard, each.last) for each in token.places
    }

    Reset(datastore, coordinator, GROUP, BY).run(dict.fromkeys(ends, 0), lease_s=LEASE_S)
    with pytest.raises(WaitTimedOut):
        datastore.wait_for(token, trigger=GROUP, timeout_s=0.1)
    with working(datastore, coordinator, recorder):
        assert datastore.wait_for(token, trigger=GROUP, timeout_s=20).handled
    assert places(results) <= set(recorder.cells)


@pytest.mark.parametrize("dies_at", ["reset.after_decision", "reset.after_offsets"])
def test_a_decided_reset_counts_although_zookeeper_has_not_got_it(
    datastore: Datastore, coordinator: Coordinator, dies_at: str
) -> None:
    with working(datastore, coordinator, Recorder()):
        results = put(datastore, 4)
        wait_until(lambda: len(offsets(coordinator)) == 2, "both shards are begun")
        assert datastore.wait_for(results, trigger=GROUP, timeout_s=20).handled

    if not (dies_at == "reset.after_offsets" and coordinator.keeps_in_store):
        set_failpoint(dies_at, "raise")
        try:
            with pytest.raises(FailpointReached):
                Reset(datastore, coordinator, GROUP, BY).run({0: 0, 1: 0}, lease_s=LEASE_S)
        finally:
            clear_failpoints()
        with pytest.raises(WaitTimedOut):
            datastore.wait_for(results, trigger=GROUP, timeout_s=0.05)


def test_a_cell_whose_parking_is_on_its_way_to_the_state_table_is_not_passed(
    datastore: Datastore, tree: ZooKeeperTree
) -> None:
    cell = parked_cell(0, 0, group=GROUP)
    with closing(open_coordination("zookeeper", datastore, tree)) as coordinator:
        session = coordinator.join(GROUP, "w", 10)
        claim = coordinator.claim(session, "trips", [0])[0]
        offset = {("trips", 0): CommittedOffset(1)}
        entries = ParkedCells(datastore.state).entry(cell)
        outlet = GroupOutlet("trigger", GROUP, datastore, coordinator)
        set_failpoint("zookeeper.entries_decided", "raise")
        try:
            with pytest.raises(FailpointReached):
                coordinator.commit_offsets(GROUP, offset, claims=[claim], entries=entries)
        finally:
            clear_failpoints()
        assert outlet.positions([0]) == {0: 1}
        assert outlet.passed([Places(0, 0, 0)]) is None

        coordinator.claim(session, "trips", [0])  # brings the entries where they belong
        assert outlet.passed([Places(0, 0, 0)]) == Passed("trigger", [Place(0, 0)])


def test_an_index_that_is_waited_for_finds_the_row(datastore: Datastore) -> None:
    with closing(open_coordination("store", datastore)) as coordinator:
        datastore.waits.find = outlets(datastore, coordinator)
        datastore.indexes.catalog.create(BY_DRIVER)
        [early] = put(datastore, 1)
        with pytest.raises(WaitTimedOut, match="being built"):
            datastore.wait_for(early, index="by_driver", timeout_s=0.05)
        with pytest.raises(StorageUnavailable):
            datastore.query_index("by_driver", "ann")
        with index_worker(datastore):
            made_index(datastore, BY_DRIVER)
            for number in range(2, 12):
                [result] = put(datastore, 1)
                assert datastore.wait_for(result, index="by_driver", timeout_s=20).handled
                assert len(datastore.query_index("by_driver", "ann").rows) == number


@pytest.fixture
def polling_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is answered by a poll, and no offset is saved because it is time to."""
    for name in ("POLL_FIRST_S", "POLL_MAX_S", "POLL_WOKEN_S"):
        monkeypatch.setattr(watched_outlet, name, 600.0)
    monkeypatch.setattr(position, "SAVE_EVERY_S", 600.0)


@pytest.mark.usefixtures("polling_seldom")
def test_a_waiter_is_woken_by_the_save_of_a_trigger(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder = Recorder()
    with working(datastore, coordinator, recorder):
        wait_until(lambda: len(offsets(coordinator)) == 2, "both shards are begun")
        for _ in range(10):
            results = put(datastore, 2)
            assert datastore.wait_for(results, trigger=GROUP, timeout_s=20).handled
            assert places(results) <= set(recorder.cells)


@pytest.mark.usefixtures("polling_seldom")
def test_an_index_that_saves_lazily_saves_at_once_for_a_waiter(datastore: Datastore) -> None:
    with closing(open_coordination("store", datastore)) as coordinator:
        datastore.waits.find = outlets(datastore, coordinator)
        with index_worker(datastore):
            made_index(datastore, BY_DRIVER)
            for number in range(1, 11):
                [result] = put(datastore, 1)
                assert datastore.wait_for(result, index="by_driver", timeout_s=20).handled
                assert len(datastore.query_index("by_driver", "ann").rows) == number


def test_a_wake_up_that_is_lost_costs_a_poll(
    datastore: Datastore, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    monkeypatch.setattr(datastore.awaited, "wake", lost.append)
    with working(datastore, coordinator, Recorder()):
        wait_until(lambda: len(offsets(coordinator)) == 2, "both shards are begun")
        for _ in range(5):
            assert datastore.wait_for(put(datastore, 2), trigger=GROUP, timeout_s=20).handled
    assert lost
