"""Two actors at one transaction of the coordination in ZooKeeper: what happens between a look and
its commit is decided by the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import StaleWriter
from cellfeed.testing.zookeeper_tree import ZooKeeperTree

TTL_S = 60.0


@pytest.fixture
def coordinators(tmp_path: Path) -> Iterator[tuple[ZooKeeperCoordinator, ZooKeeperCoordinator]]:
    """Two processes' coordinators over one ensemble."""
    tree = ZooKeeperTree()
    with closing(SqliteState(tmp_path / "state.sqlite3")) as state:
        made = [
            ZooKeeperCoordinator(
                ZooKeeperAddress("in memory"),
                state,
                connect=lambda _, timeout_s: tree.begin(timeout_s),
            )
            for _ in range(2)
        ]
        with closing(made[0]), closing(made[1]):
            yield made[0], made[1]


def before_next_commit(
    coordinator: ZooKeeperCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[], object],
) -> None:
    """``happens`` comes once, between the look that a call makes and its commit."""
    commit, waiting = coordinator._base.commit, [happens]

    def interrupted(operations: Sequence[Any], **more: Any) -> Any:
        if waiting:
            waiting.pop()()
        return commit(operations, **more)

    monkeypatch.setattr(coordinator._base, "commit", interrupted)


def test_a_session_that_ends_between_the_look_and_the_commit_claims_nothing(
    coordinators: tuple[ZooKeeperCoordinator, ZooKeeperCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, other = coordinators
    session = paused.join("g", "a", TTL_S)
    before_next_commit(paused, monkeypatch, lambda: other.join("g", "a", TTL_S))
    assert paused.claim(session, "trips", [0, 1]) == {}
    assert other.owners("g", "trips") == {}


def test_a_session_that_ends_between_the_look_and_the_commit_takes_no_lead(
    coordinators: tuple[ZooKeeperCoordinator, ZooKeeperCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, other = coordinators
    session = paused.join("g", "a", TTL_S)
    before_next_commit(paused, monkeypatch, lambda: other.join("g", "a", TTL_S))
    assert not paused.lead(session)
    assert other.leader("g") is None


def test_a_leader_whose_session_ends_between_the_look_and_the_commit_assigns_nothing(
    coordinators: tuple[ZooKeeperCoordinator, ZooKeeperCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, other = coordinators
    session = paused.join("g", "a", TTL_S)
    assert paused.lead(session)
    before_next_commit(paused, monkeypatch, lambda: other.join("g", "a", TTL_S))
    with pytest.raises(StaleWriter):
        paused.assign(session, {0: "a"})
    assert other.assignment("g") == {}


def test_a_lead_that_changes_hands_between_the_look_and_the_commit_assigns_nothing(
    coordinators: tuple[ZooKeeperCoordinator, ZooKeeperCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, other = coordinators
    session, follower = paused.join("g", "a", TTL_S), other.join("g", "b", TTL_S)
    assert paused.lead(session)

    def replaced() -> None:
        other.leave(session)
        assert other.lead(follower)
        other.assign(follower, {0: "b"})

    before_next_commit(paused, monkeypatch, replaced)
    with pytest.raises(StaleWriter):
        paused.assign(session, {0: "a"})
    assert other.assignment("g") == {0: "b"}
