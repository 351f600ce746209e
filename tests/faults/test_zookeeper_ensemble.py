"""Trigger workers on an ensemble of three ZooKeeper servers: the leader is killed, then the
majority. Nothing is lost, nothing runs twice (I14, I20)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from tests.faults.zookeeper_workers import (
    SHARDS,
    Workers,
    all_owned,
    caught_up,
    is_back,
    put,
    saved,
)
from tests.support import local_zookeeper
from tests.support.local_zookeeper import Ensemble
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.faults]


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    if reason := local_zookeeper.why_not():
        pytest.skip(reason)
    servers = Ensemble(tmp_path / "zookeeper")
    try:
        servers.start()
        yield servers
    finally:
        servers.kill()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as opened:
        yield opened


@pytest.fixture
def workers(tmp_path: Path, store: Datastore, ensemble: Ensemble) -> Iterator[Workers]:
    started = Workers(
        tmp_path, store, ensemble.url, lease_s=4.0
    )  # a session outlasts an election and the way to another server, on a busy machine too
    yield started
    started.end()


def test_work_continues_when_the_leader_is_killed_and_when_the_majority_is(
    ensemble: Ensemble, store: Datastore, workers: Workers
) -> None:
    with closing(open_coordinator(f"{ensemble.url}/here?timeout_s=2", store.state)) as coordinator:
        for name in "ab":
            workers.start(name)
        wait_until(lambda: all_owned(coordinator, 2), "the shares are settled")
        put(store, range(100))
        wait_until(lambda: caught_up(store, coordinator), "the first cells are run and saved")
        stays = workers.stays(ensemble.url)

        leader = ensemble.leader()
        assert leader is not None
        leader.kill()
        put(store, range(100, 200))
        wait_until(lambda: ensemble.leader() not in (None, leader), "another one leads")
        wait_until(
            lambda: caught_up(store, coordinator),
            "work has gone on, and is saved with the new leader",
        )
        assert len(workers.runs()) == 200
        assert workers.stays(ensemble.url) == stays, (
            "sessions have not moved to the other servers: members joined again"
        )

        before = saved(coordinator)
        second = ensemble.leader()
        assert second is not None
        second.kill()
        put(store, range(200, 300))
        wait_until(lambda: len(workers.runs()) == 300, "work continues without a majority")
        assert not is_back(coordinator), "the fault did not happen: there is a majority"

        leader.start()
        second.start()
        wait_until(
            lambda: caught_up(store, coordinator) and workers.settled(ensemble.url, 2),
            "what was kept is saved, the shares are settled",
        )
        assert all(saved(coordinator)[shard] >= offset for shard, offset in before.items())
        put(store, range(300, 360))
        wait_until(lambda: caught_up(store, coordinator), "all is as before")
        assert set(workers.cells_run().values()) == {1}
        workers.assert_run_or_parked()


def test_a_server_that_hangs_is_left_for_another(ensemble: Ensemble, store: Datastore) -> None:
    with closing(open_coordinator(f"{ensemble.url}?timeout_s=1", store.state)) as coordinator:
        wait_until(lambda: is_back(coordinator), "it is connected")
        assert isinstance(coordinator, ZooKeeperCoordinator)
        port = coordinator._base._client._connection._socket.getpeername()[1]  # type: ignore[attr-defined]
        [hung] = [server for server in ensemble.servers if server.port == port]
        hung.pause()
        with pytest.raises(Unavailable):
            coordinator.groups()
        wait_until(
            lambda: is_back(coordinator),
            "another server answers, while calls are made all the time",
        )
        assert hung.mode() == "", "the fault did not happen: the server answers"
