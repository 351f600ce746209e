"""Two actors at one transaction of the coordination in ZooKeeper: an event between a look and its
commit is decided by the commit. A new group is made by two actors in every order of one's calls and
the other's whole join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Session
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.era import ERA_KEY
from cellfeed.bridge.coordination.zookeeper.paths import birth_of
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import StaleWriter, Unavailable
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


def test_a_first_offset_that_another_process_saves_between_the_look_and_the_commit_is_replaced(
    coordinators: tuple[ZooKeeperCoordinator, ZooKeeperCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, other = coordinators
    claim = paused.claim(paused.join("g", "a", TTL_S), "trips", [0])[0]
    place = ("trips", 0)
    before_next_commit(
        paused,
        monkeypatch,
        lambda: other.commit_offsets("g", {place: CommittedOffset(3)}, claims=[claim]),
    )
    paused.commit_offsets("g", {place: CommittedOffset(5)}, claims=[claim])
    assert other.fetch_offsets("g", [place])[place].offset == 5


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


def test_a_process_of_an_earlier_era_claims_no_shard(
    coordinators: tuple[ZooKeeperCoordinator, ZooKeeperCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of the era changes between the comparison and the mark of the claim."""
    process, other = coordinators
    session = process.join("g", "a", TTL_S)
    state = process._history._state
    entry = state.get(ERA_KEY)
    assert entry is not None
    announce = process._history._witness.announce

    def overtaken(*arguments: Any) -> None:
        monkeypatch.undo()
        state.commit({ERA_KEY: entry.value})
        announce(*arguments)

    monkeypatch.setattr(process._history._witness, "announce", overtaken)
    with pytest.raises(Unavailable, match="history changed meanwhile"):
        process.claim(session, "trips", [0])
    assert other.owners("g", "trips") == {}
    assert set(process.claim(session, "trips", [0])) == {0}, "compared again, it is well"


class Interrupted(SqliteState):
    """``happens`` comes once, before the call of that number, here or in ZooKeeper."""

    def interrupt(self, number: int, happens: Callable[[], object]) -> None:
        self.calls, self._number, self._happens = 0, number, happens

    def count(self) -> None:
        self.calls += 1
        if self.calls == self._number:
            self._happens()

    def get(self, key: str) -> StateEntry | None:
        self.count()
        return super().get(key)

    def list(self, prefix: str) -> list[StateEntry]:
        self.count()
        return super().list(prefix)

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        self.count()
        return super().commit(write, expect)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["new", "deleted by hand"])
def test_two_members_that_make_a_group_at_once_join_the_same_one(
    tmp_path: Path, is_deleted: bool
) -> None:
    """Before each call of one's join, the other joins as a whole."""
    number = calls = 0
    while number == 0 or number < calls:
        number += 1
        calls = _joined_together(tmp_path / f"{number}.sqlite3", number, is_deleted)
    assert calls > 10


def _joined_together(path: Path, number: int, is_deleted: bool) -> int:
    """How many calls the slower join made; the faster one comes before the call of ``number``."""
    tree = ZooKeeperTree()
    with ExitStack() as opened:
        state = opened.enter_context(closing(SqliteState(path)))
        slow_state = opened.enter_context(closing(Interrupted(path)))
        slow_state.interrupt(0, lambda: None)
        fast, slow = (
            opened.enter_context(closing(_coordinator(tree, *each)))
            for each in ((state, lambda: None), (slow_state, slow_state.count))
        )
        if is_deleted:
            fast.join("g", "earlier", TTL_S)
            _delete(tree, "g")
        first: list[Session] = []
        slow_state.interrupt(number, lambda: first.append(fast.join("g", "fast", TTL_S)))
        session, calls = slow.join("g", "slow", TTL_S), slow_state.calls
        slow_state.interrupt(0, lambda: None)
        if first:
            assert birth_of(first[0].epoch) == birth_of(session.epoch), number
            assert set(fast.claim(first[0], "trips", [0])) == {0}
        assert set(slow.claim(session, "trips", [1])) == {1}
        return calls


def _coordinator(
    tree: ZooKeeperTree, state: SqliteState, before_call: Callable[[], None]
) -> ZooKeeperCoordinator:
    return ZooKeeperCoordinator(
        ZooKeeperAddress("in memory"),
        state,
        connect=lambda _, timeout_s: tree.begin(timeout_s, before_call),
    )


def _delete(tree: ZooKeeperTree, group: str) -> None:
    """As an operator does with a tool of ZooKeeper's."""
    copy = tree.copy()
    kept = {path: each for path, each in copy.znodes.items() if f"/{group}" not in path}
    assert len(kept) < len(copy.znodes)
    tree.go_back(replace(copy, znodes=kept))
