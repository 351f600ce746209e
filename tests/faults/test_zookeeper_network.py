"""The network between one trigger worker and ZooKeeper is slow, or silent one way. Its session runs
out or not: nothing is lost, nothing falls (I14, I20)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.triggers.shard.position import SAVE_EVERY_S
from cellfeed.store.datastore import Datastore
from tests.faults.zookeeper_workers import GROUP, Workers, all_owned, caught_up, put, saved
from tests.support.local_zookeeper import ZooKeeper
from tests.support.tcp_proxy import Direction, TcpProxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.faults]

RUN_S = 0.02
"""The time that a cell takes: so the worker that is cut off is at work when another one takes
over."""

RUN_BETWEEN_SAVES = int(SAVE_EVERY_S / RUN_S) + 2
"""Cells of a shard that may run again after it was taken over from a worker at work."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=4) as opened:
        yield opened


@pytest.fixture
def proxy(zookeeper_server: ZooKeeper) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper_server.port) as opened:
        yield opened


@pytest.fixture
def coordinator(
    zookeeper_server: ZooKeeper, store: Datastore, tmp_path: Path
) -> Iterator[Coordinator]:
    """The test's own eyes, with a network that is well."""
    with closing(
        open_coordinator(f"{zookeeper_server.url}/{tmp_path.name}?timeout_s=2", store.state)
    ) as opened:
        yield opened


@pytest.fixture
def workers(tmp_path: Path, store: Datastore, zookeeper_server: ZooKeeper) -> Iterator[Workers]:
    started = Workers(tmp_path, store, zookeeper_server.url, chroot=tmp_path.name)
    yield started
    started.end()


class Offsets:
    """The saved offsets, as they were seen from time to time: they never fall (I20)."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._last: dict[int, int] = {}

    def look(self) -> None:
        now = saved(self._coordinator)
        assert all(now.get(shard, -1) >= offset for shard, offset in self._last.items()), (
            f"offsets fell from {self._last} to {now}"
        )
        self._last = now


def url_by(proxy: TcpProxy, tmp_path: Path) -> str:
    return f"zookeeper://127.0.0.1:{proxy.port}/{tmp_path.name}?timeout_s=1"


def begin(store: Datastore, workers: Workers, coordinator: Coordinator, far: str) -> None:
    """Two workers that have their shares; the network of one of them is the test's."""
    workers.start("near", run_s=RUN_S)
    workers.start("far", run_s=RUN_S, coordination=far)
    wait_until(lambda: all_owned(coordinator, 2), "the shares are settled")
    put(store, range(60))
    wait_until(lambda: caught_up(store, coordinator), "both have begun")


def test_a_worker_whose_messages_are_lost_is_replaced_and_rejoins(
    store: Datastore, workers: Workers, coordinator: Coordinator, proxy: TcpProxy, tmp_path: Path
) -> None:
    begin(store, workers, coordinator, url_by(proxy, tmp_path))
    offsets = Offsets(coordinator)
    proxy.silence(Direction.TO_SERVER)
    put(store, range(60, 500))

    def taken_over() -> bool:
        offsets.look()
        return (
            coordinator.members(GROUP) == ["near"]
            and set(coordinator.owners(GROUP, "trips").values()) == {"near"}
            and caught_up(store, coordinator)
        )

    wait_until(taken_over, "the session has run out and the other worker has done it all")
    assert proxy.held[Direction.TO_SERVER] > 0
    ends = saved(coordinator)
    proxy.resume()  # its words from then arrive now, late
    wait_until(
        lambda: coordinator.members(GROUP) == ["far", "near"] and all_owned(coordinator, 2),
        "it is back and has its share",
    )
    assert saved(coordinator) == ends
    put(store, range(500, 560))
    wait_until(lambda: caught_up(store, coordinator), "both continue")
    offsets.look()
    workers.assert_run_or_parked()
    workers.assert_in_order()
    near = workers.processes["near"].pid
    assert len({shard for shard, _, pid in workers.runs() if pid == near}) > 2, (
        "it had no cells left to take over"
    )
    assert sum(workers.cells_run().values()) - len(workers.cells_run()) <= 2 * RUN_BETWEEN_SAVES


def test_a_worker_that_receives_no_messages_continues_with_its_shards(
    store: Datastore, workers: Workers, coordinator: Coordinator, proxy: TcpProxy, tmp_path: Path
) -> None:
    begin(store, workers, coordinator, url_by(proxy, tmp_path))
    offsets = Offsets(coordinator)
    proxy.silence(Direction.TO_CLIENT)
    put(store, range(60, 300))
    wait_until(lambda: len(workers.cells_run()) == 300, "all is run, by whomever")
    offsets.look()
    assert proxy.held[Direction.TO_CLIENT] > 0
    proxy.resume()
    wait_until(
        lambda: caught_up(store, coordinator) and all_owned(coordinator, 2),
        "what was kept is saved, the shares are settled",
    )
    put(store, range(300, 360))
    wait_until(lambda: caught_up(store, coordinator), "both continue")
    offsets.look()
    workers.assert_run_or_parked()
    workers.assert_in_order()


def test_a_slow_zookeeper_costs_no_session_and_no_cell_runs_twice(
    store: Datastore, workers: Workers, coordinator: Coordinator, proxy: TcpProxy, tmp_path: Path
) -> None:
    begin(store, workers, coordinator, url_by(proxy, tmp_path))
    stays = workers.stays(workers.url)
    before = proxy.passed[Direction.TO_CLIENT]
    proxy.delay(0.1)  # a fifth of a second for each answer, and no more than ten answers a second
    put(store, range(60, 400))
    wait_until(lambda: caught_up(store, coordinator), "all is run and saved")
    assert proxy.passed[Direction.TO_CLIENT] > before, "it was not asked"
    assert workers.stays(workers.url) == stays, "a session has ended"
    assert set(workers.cells_run().values()) == {1}
    assert len({pid for _, _, pid in workers.runs()}) == 2
    workers.assert_run_or_parked()
