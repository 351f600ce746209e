"""Leases of members in ZooKeeper, by the clock of the process that has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.contract import Session
from cellfeed.bridge.coordination.zookeeper.client import Set, ZooKeeperClient
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.paths import Paths, birth_of
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.waiting import wait_until

TTL_S = 600.0


class _ZooKeeper:
    """``granted``: the part of a session's time-out that the server grants. ``call_s``: how long
    each call takes by the process's clock."""

    def __init__(self) -> None:
        self.tree, self.now_s, self.call_s, self.granted = ZooKeeperTree(), 1_000.0, 0.0, 1.0
        self.away = False
        self.meanwhile: Callable[[], None] = lambda: None
        """Happens during the next call."""

    def clock(self) -> float:
        return self.now_s

    def connect(self, _: ZooKeeperAddress, timeout_s: float) -> ZooKeeperClient:
        return self.tree.begin(timeout_s * self.granted, self._call)

    def _call(self) -> None:
        if self.away:
            raise Unavailable("away")
        self.now_s += self.call_s
        happens, self.meanwhile = self.meanwhile, lambda: None
        happens()


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path, shards=1) as opened:
        yield opened


@pytest.fixture
def zookeeper() -> _ZooKeeper:
    return _ZooKeeper()


@pytest.fixture
def coordinator(zookeeper: _ZooKeeper, datastore: Datastore) -> Iterator[ZooKeeperCoordinator]:
    with closing(
        ZooKeeperCoordinator(
            ZooKeeperAddress("in memory"),
            datastore.state,
            clock=zookeeper.clock,
            connect=zookeeper.connect,
        )
    ) as opened:
        yield opened


def test_a_lease_begins_before_the_call_that_makes_it(
    zookeeper: _ZooKeeper, coordinator: ZooKeeperCoordinator
) -> None:
    """ZooKeeper may have made the member at once, and answered late."""
    coordinator.join("billing", "other", TTL_S)  # the group is there
    zookeeper.call_s = 10.0
    coordinator.join("billing", "a", TTL_S)
    zookeeper.call_s = 0.0
    coordinator.renew(coordinator.join("billing", "witness", TTL_S))
    last_answer_s = zookeeper.now_s
    zookeeper.now_s = last_answer_s - 5.0 + TTL_S
    assert "a" not in coordinator.members("billing")
    assert "witness" in coordinator.members("billing")


def test_a_server_that_grants_less_makes_a_shorter_lease(
    zookeeper: _ZooKeeper, coordinator: ZooKeeperCoordinator
) -> None:
    zookeeper.granted = 0.1
    session = coordinator.join("billing", "a", TTL_S)
    assert session.ttl_s == pytest.approx(TTL_S / 10)
    zookeeper.now_s += TTL_S / 10 + 1
    assert coordinator.members("billing") == []


def test_a_lease_that_ran_out_while_zookeeper_was_away_ends_when_it_is_back(
    zookeeper: _ZooKeeper, coordinator: ZooKeeperCoordinator
) -> None:
    coordinator.join("billing", "a", TTL_S)
    zookeeper.now_s += TTL_S + 1
    zookeeper.away = True
    with pytest.raises(Unavailable):
        coordinator.members("billing")
    zookeeper.away = False
    assert coordinator.members("billing") == []


def go_back(zookeeper: _ZooKeeper, coordinator: ZooKeeperCoordinator, session: Session) -> None:
    """ZooKeeper starts again with an earlier disk, and the coordinator has noticed it."""
    copy = zookeeper.tree.copy()
    coordinator.claim(session, "trips", [0])
    before = coordinator.lineage("billing")
    zookeeper.tree.go_back(copy)

    def noticed() -> bool:
        try:
            return coordinator.lineage("billing") != before
        except Unavailable:
            return False

    wait_until(noticed, "it is seen that the history is another one")


def test_a_member_from_before_the_history_changed_joins_the_group_that_is_there_now(
    zookeeper: _ZooKeeper, coordinator: ZooKeeperCoordinator
) -> None:
    """ZooKeeper went back to an earlier disk, which has the member's znode: a member of that group
    would get no shards, and nobody would see it."""
    session = coordinator.join("billing", "a", TTL_S)
    go_back(zookeeper, coordinator, session)
    coordinator.join("billing", "b", TTL_S)
    renewed = coordinator.renew(session)
    assert renewed.epoch > session.epoch
    assert coordinator.members("billing") == ["a", "b"]
    assert set(coordinator.claim(renewed, "trips", [0])) == {0}


def test_a_birth_is_above_zookeepers_where_the_datastore_has_lost_its_own(
    zookeeper: _ZooKeeper, coordinator: ZooKeeperCoordinator, datastore: Datastore
) -> None:
    """Epochs and tokens of the members before must not come again."""
    session = coordinator.join("billing", "a", TTL_S)
    go_back(zookeeper, coordinator, session)
    higher = birth_of(session.epoch) + 7
    coordinator._base.commit([Set(coordinator._paths.group("billing"), str(higher).encode())])
    datastore.state.commit({"coordination/billing/birth": None})
    assert birth_of(coordinator.join("billing", "b", TTL_S).epoch) > higher


def test_a_lease_under_renewal_is_not_ended_by_another_thread(
    zookeeper: _ZooKeeper, coordinator: ZooKeeperCoordinator
) -> None:
    session = coordinator.join("billing", "a", TTL_S)
    zookeeper.now_s += TTL_S - 1

    def another_thread_looks_later() -> None:
        zookeeper.now_s += 2
        assert "a" in coordinator.members("billing")

    zookeeper.meanwhile = another_thread_looks_later
    assert coordinator.renew(session) == session
    assert zookeeper.meanwhile is not another_thread_looks_later
    assert "a" in coordinator.members("billing")


def test_a_group_whose_znode_is_empty_is_given_a_birth(
    zookeeper: _ZooKeeper, coordinator: ZooKeeperCoordinator
) -> None:
    """An operator's tool, or another program, made the znode."""
    client, path = zookeeper.tree.begin(TTL_S), Paths("").group("billing")
    client.ensure(path)
    assert coordinator.members("billing") == []
    session = coordinator.join("billing", "a", TTL_S)
    found = client.get(path)
    assert found is not None
    assert int(found[0]) == birth_of(session.epoch)
    assert "a" in coordinator.members("billing")
