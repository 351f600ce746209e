"""Trigger workers whose coordination is a real ZooKeeper, which is killed, paused, cut off or
wiped: work continues, and nothing is skipped or goes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import parse_zookeeper_url
from cellfeed.bridge.groups.division import Division
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.triggers.offsets.kept_offsets import last_known
from cellfeed.bridge.triggers.offsets.lineage import accept, lost_offsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from tests.faults.zookeeper_workers import (
    GROUP,
    LEASE_S,
    SHARDS,
    Workers,
    all_begun,
    all_owned,
    caught_up,
    is_back,
    put,
    saved,
)
from tests.support import local_zookeeper
from tests.support.local_zookeeper import ZooKeeper
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.faults]

LONG_LEASE_S = 30.0


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    if reason := local_zookeeper.why_not():
        pytest.skip(reason)
    server = ZooKeeper(tmp_path / "zookeeper")
    try:
        server.start()
        yield server
    finally:
        server.resume()
        server.kill()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as opened:
        yield opened


@pytest.fixture
def coordinator(zookeeper: ZooKeeper, store: Datastore) -> Iterator[Coordinator]:
    """The test's own eyes."""
    with closing(open_coordinator(f"{zookeeper.url}/here?timeout_s=2", store.state)) as opened:
        yield opened


@pytest.fixture
def workers(tmp_path: Path, store: Datastore, zookeeper: ZooKeeper) -> Iterator[Workers]:
    started = Workers(tmp_path, store, zookeeper.url)
    yield started
    started.end()


def test_assigned_shards_continue_while_zookeeper_is_dead_and_no_cell_runs_twice(
    zookeeper: ZooKeeper, store: Datastore, workers: Workers, coordinator: Coordinator
) -> None:
    for name in "ab":
        workers.start(name)
    wait_until(lambda: all_owned(coordinator, 2), "the shares are settled")
    put(store, range(100))
    wait_until(lambda: caught_up(store, coordinator), "the first cells are run and saved")
    before = saved(coordinator)
    zookeeper.kill()
    put(store, range(100, 300))
    put(store, range(300, 310), poison=True)
    put(store, range(310, 400))
    wait_until(
        lambda: len(workers.runs()) == 390, "all but the poisoned cells are run without ZooKeeper"
    )
    time.sleep(3 * LEASE_S)  # well past every lease
    put(store, range(400, 500))
    wait_until(lambda: len(workers.runs()) == 490, "work continues after the leases have run out")
    wait_until(
        lambda: ParkedCells(store.state).count(GROUP) == 10, "what fails is parked meanwhile"
    )
    assert not zookeeper.is_running()
    zookeeper.start()
    wait_until(lambda: caught_up(store, coordinator), "what was kept is saved")
    assert all(saved(coordinator)[shard] > offset for shard, offset in before.items())
    put(store, range(500, 600))
    wait_until(lambda: caught_up(store, coordinator), "all is as before")
    assert set(workers.cells_run().values()) == {1}
    workers.assert_run_or_parked()
    workers.assert_in_order()


def test_no_shard_changes_hands_when_one_member_reconnects_before_the_others(
    zookeeper: ZooKeeper, store: Datastore
) -> None:
    now_s = [
        0.0
    ]  # leases run out, and moments pass, only when the test says so, however slow the machine is

    def clock() -> float:
        return now_s[0]

    address = parse_zookeeper_url(f"{zookeeper.url}/here?timeout_s=2")
    with (
        closing(ZooKeeperCoordinator(address, store.state, clock=clock)) as first,
        closing(ZooKeeperCoordinator(address, store.state, clock=clock)) as second,
    ):
        memberships = [
            Membership(first, GROUP, "a", LONG_LEASE_S, clock=clock),
            Membership(second, GROUP, "b", LONG_LEASE_S, clock=clock),
        ]
        old = [membership.session for membership in memberships]
        division = Division(first, memberships[0], store.name, clock=clock)
        assert first.lead(old[0])
        assert division.divide(SHARDS, first.members(GROUP))
        before = first.assignment(GROUP)
        for coordinator, session in zip((first, second), old, strict=True):
            shares = [shard for shard, member in before.items() if member == session.member]
            assert len(coordinator.claim(session, store.name, shares)) == len(shares) == SHARDS / 2
        zookeeper.kill()
        now_s[0] += 10 * LONG_LEASE_S
        zookeeper.start()
        wait_until(lambda: renewed(memberships[0]), "a is back")
        assert memberships[0].session.epoch > old[0].epoch
        wait_until(lambda: first.members(GROUP) == ["a"], "b is not there yet")
        assert first.lead(memberships[0].session)
        assert not division.divide(SHARDS, first.members(GROUP))
        wait_until(lambda: renewed(memberships[1]), "b is back")
        assert memberships[1].session.epoch > old[1].epoch
        assert first.members(GROUP) == ["a", "b"]
        assert not division.divide(SHARDS, first.members(GROUP))
        assert first.assignment(GROUP) == before


def renewed(membership: Membership) -> bool:
    try:
        membership.renew()
    except Unavailable:
        return False
    return True


def test_a_worker_killed_while_zookeeper_is_away_leaves_its_kept_offsets_to_its_successor(
    zookeeper: ZooKeeper, store: Datastore, workers: Workers, coordinator: Coordinator
) -> None:
    first = workers.start("first")
    wait_until(lambda: all_begun(store), "it has begun on all")
    zookeeper.kill()
    put(store, range(200))
    put(store, range(200, 204), poison=True)
    wait_until(
        lambda: len(workers.runs()) == 200 and ParkedCells(store.state).count(GROUP) == 4,
        "all is run or parked",
    )
    ends = {shard: head.watermark for shard, head in store.heads().items()}
    wait_until(
        lambda: last_known(store.state, GROUP, "trips", range(SHARDS)) == ends, "all is kept"
    )
    first.kill()
    first.wait(10)
    zookeeper.start()
    wait_until(lambda: is_back(coordinator), "ZooKeeper is back")
    assert set(saved(coordinator).values()) == {0}, (
        "the fault did not happen: more than the start was saved"
    )
    workers.start("second")
    wait_until(lambda: caught_up(store, coordinator), "the second continues from there")
    assert set(workers.cells_run().values()) == {1}
    workers.assert_run_or_parked()


def test_workers_that_start_while_zookeeper_is_away_wait_for_it(
    zookeeper: ZooKeeper, store: Datastore, workers: Workers, coordinator: Coordinator
) -> None:
    zookeeper.kill()
    put(store, range(50))
    worker = workers.start("early")
    wait_until(lambda: "cannot be reached" in workers.log("early"), "it says what it waits for")
    zookeeper.start()
    wait_until(lambda: caught_up(store, coordinator), "it works")
    worker.terminate()
    assert worker.wait(20) == 0


def test_a_worker_drains_without_zookeeper(
    zookeeper: ZooKeeper, store: Datastore, workers: Workers, coordinator: Coordinator
) -> None:
    worker = workers.start("a", run_s=0.005)
    wait_until(lambda: all_begun(store), "it has begun on all")
    zookeeper.kill()
    put(store, range(400))
    wait_until(lambda: len(workers.runs()) > 20, "work under way")
    worker.terminate()
    assert worker.wait(20) == 0
    zookeeper.start()
    workers.start("b")
    wait_until(lambda: caught_up(store, coordinator), "another continues")
    assert set(workers.cells_run().values()) == {1}
    workers.assert_run_or_parked()


def test_a_wiped_zookeeper_stops_the_trigger_until_an_operator_sets_the_location(
    zookeeper: ZooKeeper, store: Datastore, workers: Workers, coordinator: Coordinator
) -> None:
    workers.start("a")
    wait_until(lambda: all_owned(coordinator), "it owns all")
    put(store, range(100))
    wait_until(lambda: caught_up(store, coordinator), "the first cells are run and saved")
    zookeeper.kill()
    zookeeper.wipe()
    put(store, range(100, 150))
    wait_until(lambda: len(workers.runs()) == 150, "shards that are assigned continue")
    zookeeper.start()
    wait_until(lambda: "stands still" in workers.log("a"), "it says that its offsets were lost")
    assert "cellfeed offsets set recorder kept|earliest|latest" in workers.log("a")
    put(store, range(150, 200))
    time.sleep(2 * LEASE_S)
    assert len(workers.runs()) == 150, "it guessed"
    wait_until(lambda: is_back(coordinator), "the test's own connection")
    assert lost_offsets(store.state, coordinator, GROUP, "trips") is not None
    # A restart knows as little.
    workers.processes["a"].terminate()
    assert workers.processes["a"].wait(20) == 0
    workers.start("b")
    wait_until(lambda: "stands still" in workers.log("b"), "the next one says so too")
    wait_until(lambda: is_back(coordinator), "the test's own connection")
    kept = last_known(store.state, GROUP, "trips", range(SHARDS))
    coordinator.commit_offsets(
        GROUP, {("trips", shard): CommittedOffset(location) for shard, location in kept.items()}
    )
    accept(store.state, coordinator, GROUP, "trips")
    wait_until(lambda: caught_up(store, coordinator), "it continues")
    assert set(workers.cells_run().values()) == {1}
    workers.assert_run_or_parked()


def test_offsets_deleted_by_hand_stop_the_trigger(
    store: Datastore, workers: Workers, coordinator: Coordinator
) -> None:
    first = workers.start("a")
    put(store, range(100))
    wait_until(lambda: caught_up(store, coordinator), "the cells are run and saved")
    first.terminate()
    assert first.wait(20) == 0
    workers.start("b")
    wait_until(
        lambda: (
            all_owned(coordinator) and set(coordinator.owners(GROUP, "trips").values()) == {"b"}
        ),
        "another has them",
    )
    workers.processes["b"].kill()
    workers.processes["b"].wait(10)
    coordinator.delete_offsets(GROUP)
    workers.start("c")
    wait_until(lambda: "stands still" in workers.log("c"), "it says that its offsets were lost")
    assert "the offsets of 4 shards that it has worked on are gone" in workers.log("c")
    assert len(workers.runs()) == 100


def test_a_paused_worker_moves_no_offset_when_it_wakes_up_after_its_session(
    store: Datastore, workers: Workers, coordinator: Coordinator
) -> None:
    zombie = workers.start("zombie", run_s=0.02)
    wait_until(lambda: all_owned(coordinator), "it owns all")
    put(store, range(300))
    wait_until(lambda: len(workers.runs()) > 5, "work under way")
    zombie.send_signal(signal.SIGSTOP)
    workers.start("heir")
    wait_until(lambda: caught_up(store, coordinator), "the heir has done it all")
    assert coordinator.members(GROUP) == ["heir"], "the session did not expire"
    before, ends = len(workers.runs()), saved(coordinator)
    zombie.send_signal(signal.SIGCONT)
    wait_until(lambda: coordinator.members(GROUP) == ["heir", "zombie"], "the zombie is back")
    time.sleep(LEASE_S)
    assert saved(coordinator) == ends
    assert len(workers.runs()) - before <= SHARDS, "more than the cells that were under way"
    put(store, range(300, 360))
    wait_until(lambda: caught_up(store, coordinator), "both continue")
    workers.assert_run_or_parked()


def test_a_zookeeper_that_hangs_past_every_session_costs_nothing(
    zookeeper: ZooKeeper, store: Datastore, workers: Workers, coordinator: Coordinator
) -> None:
    for name in "ab":
        workers.start(name)
    wait_until(lambda: all_owned(coordinator, 2), "the shares are settled")
    put(store, range(1000, 1020))
    wait_until(lambda: caught_up(store, coordinator), "both have begun")
    zookeeper.pause()
    put(store, range(200))
    wait_until(lambda: len(workers.runs()) == 220, "work continues")
    time.sleep(3 * LEASE_S)
    zookeeper.resume()
    wait_until(
        lambda: caught_up(store, coordinator) and workers.settled(zookeeper.url, 2),
        "what was kept is saved, the shares are settled again",
    )
    put(store, range(200, 300))
    wait_until(lambda: caught_up(store, coordinator), "all is as before")
    workers.assert_run_or_parked()
    assert set(workers.cells_run().values()) == {1}


@pytest.mark.parametrize(
    "failpoint",
    [
        "trigger.before_park",
        "zookeeper.entries_decided",
        "zookeeper.entries_written",
        "trigger.after_park",
    ],
)
def test_a_cell_is_run_or_parked_when_its_worker_is_killed_at_any_step_of_parking(
    store: Datastore, workers: Workers, coordinator: Coordinator, failpoint: str
) -> None:
    put(store, range(20))
    put(store, range(20, 23), poison=True)
    put(store, range(23, 40))
    victim = workers.start("victim", failpoints=f"{failpoint}=kill@2")
    assert victim.wait(30) == -signal.SIGKILL, "the fault did not happen"
    workers.start("heir")
    wait_until(lambda: caught_up(store, coordinator), "the heir continues")
    assert ParkedCells(store.state).count(GROUP) == 3
    workers.assert_run_or_parked()
    # A parked cell that is given up stays given up: a record that was on its way is written once.
    [first, *_] = ParkedCells(store.state).all(GROUP)
    ParkedCells(store.state).skip(GROUP, first.cell_id, "a test")
    workers.processes["heir"].terminate()
    assert workers.processes["heir"].wait(20) == 0
    workers.start("third")
    wait_until(
        lambda: (
            all_owned(coordinator) and set(coordinator.owners(GROUP, "trips").values()) == {"third"}
        ),
        "the third has them",
    )
    assert ParkedCells(store.state).count(GROUP) == 2
