"""Two actors at one compare-and-set of the coordination in the store: an event between a look and
its commit is decided by the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.store_keys import assignment_key, leader_key
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import StaleWriter
from tests.support.parked import parked_cell

TTL_S = 60.0


class Interrupted:
    """A state table; ``before_commit`` happens once, between the next look of its user and the
    commit that follows."""

    def __init__(self, state: SqliteState) -> None:
        self._state = state
        self.before_commit: Callable[[], object] | None = None

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        happens, self.before_commit = self.before_commit, None
        if happens is not None:
            happens()
        return self._state.commit(write, expect)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as opened:
        yield opened


@pytest.fixture
def slow(state: SqliteState) -> Interrupted:
    return Interrupted(state)


def coordinator(state: object) -> StoreCoordinator:
    return StoreCoordinator(cast("StateTable", state))


def test_a_session_that_ends_between_the_look_and_the_commit_claims_nothing(
    state: SqliteState, slow: Interrupted
) -> None:
    paused = coordinator(slow)
    session = paused.join("g", "a", TTL_S)
    slow.before_commit = lambda: coordinator(state).join("g", "a", TTL_S)
    assert paused.claim(session, "trips", [0, 1]) == {}
    assert coordinator(state).owners("g", "trips") == {}


def test_a_session_that_ends_between_the_look_and_the_commit_takes_no_lead(
    state: SqliteState, slow: Interrupted
) -> None:
    paused = coordinator(slow)
    session = paused.join("g", "a", TTL_S)
    slow.before_commit = lambda: coordinator(state).join("g", "a", TTL_S)
    assert not paused.lead(session)
    assert coordinator(state).leader("g") is None


def test_a_lead_that_changes_hands_between_the_look_and_the_commit_assigns_nothing(
    state: SqliteState, slow: Interrupted
) -> None:
    paused, other = coordinator(slow), coordinator(state)
    session, follower = paused.join("g", "a", TTL_S), other.join("g", "b", TTL_S)
    assert paused.lead(session)

    def replaced() -> None:
        other.leave(session)
        assert other.lead(follower)
        other.assign(follower, {0: "b"})

    slow.before_commit = replaced
    with pytest.raises(StaleWriter):
        paused.assign(session, {0: "a"})
    assert other.assignment("g") == {0: "b"}


def test_of_two_members_that_claim_at_once_one_has_each_partition(
    state: SqliteState, slow: Interrupted
) -> None:
    first, second = coordinator(slow), coordinator(state)
    a, b = first.join("g", "a", TTL_S), second.join("g", "b", TTL_S)
    slow.before_commit = lambda: second.claim(b, "trips", [1])
    assert set(first.claim(a, "trips", [0, 1])) == {0}
    assert first.owners("g", "trips") == {0: "a", 1: "b"}


def test_a_claim_that_is_taken_over_between_the_look_and_the_commit_moves_no_offset(
    state: SqliteState, slow: Interrupted
) -> None:
    paused, other = coordinator(slow), coordinator(state)
    session, heir = paused.join("g", "a", TTL_S), other.join("g", "b", TTL_S)
    claims = list(paused.claim(session, "trips", [0]).values())

    def taken_over() -> None:
        other.leave(session)
        [claim] = other.claim(heir, "trips", [0]).values()
        other.commit_offsets("g", {("trips", 0): CommittedOffset(9)}, claims=[claim])

    slow.before_commit = taken_over
    with pytest.raises(StaleWriter):
        paused.commit_offsets("g", {("trips", 0): CommittedOffset(3)}, claims=claims)
    assert other.fetch_offsets("g")[("trips", 0)].offset == 9


CELL = parked_cell(0, 7, group="g", row_key="00000000-0000-0000-0000-000000000007")


def test_a_cell_skipped_while_it_runs_is_counted_only_as_skipped(
    state: SqliteState, slow: Interrupted
) -> None:
    """Both at once: the first to commit decides, and the cell is never run and skipped in the
    books (I14)."""
    by_hand, worker = ParkedCells(state), ParkedCells(cast("StateTable", slow))
    state.commit(by_hand.entry(CELL))
    slow.before_commit = lambda: by_hand.skip("g", CELL.cell_id, "by hand")
    assert not worker.resolved(CELL, also={"tries/noted": b"1"})
    assert by_hand.all("g") == []
    assert state.get("tries/noted") is not None
    assert len(state.list("skipped/g/")) == 1


def test_a_cell_skipped_while_it_fails_is_not_parked_again(
    state: SqliteState, slow: Interrupted
) -> None:
    by_hand, worker = ParkedCells(state), ParkedCells(cast("StateTable", slow))
    state.commit(by_hand.entry(CELL))
    slow.before_commit = lambda: by_hand.skip("g", CELL.cell_id, "by hand")
    worker.failed_again(CELL, "no again", also={"tries/noted": b"1"})
    assert by_hand.all("g") == []
    assert state.get("tries/noted") is not None


def test_thousands_of_shards_are_claimed_but_one_taken_between_look_and_commit(
    state: SqliteState, slow: Interrupted
) -> None:
    first, second = coordinator(slow), coordinator(state)
    a, b = first.join("g", "a", TTL_S), second.join("g", "b", TTL_S)
    taken: dict[int, object] = {}
    slow.before_commit = lambda: taken.update(second.claim(b, "t", [700]))
    claims = first.claim(a, "t", range(1_500))
    assert set(taken) == {700}
    assert set(claims) == set(range(1_500)) - {700}
    first.commit_offsets("g", {}, claims=list(claims.values()))


class OlderVersion(StoreCoordinator):
    """Names the member again for each partition, and reads nothing else."""

    def assign(self, session: Session, assignment: Mapping[int, str]) -> None:
        entry = self._state.get(leader_key(session.group))
        assert entry is not None
        older = {str(partition): member for partition, member in assignment.items()}
        self._state.commit(
            {assignment_key(session.group): msgspec.json.encode(older)},
            expect={entry.key: entry.version},
        )

    def assignment(self, group: str) -> dict[int, str]:
        entry = self._state.get(assignment_key(group))
        return msgspec.json.decode(entry.value, type=dict[int, str]) if entry else {}


def test_beside_a_process_of_the_older_version_each_partition_has_one_owner(
    state: SqliteState,
) -> None:
    older, newer = OlderVersion(cast("StateTable", state)), coordinator(state)
    a, b = older.join("g", "older", TTL_S), newer.join("g", "newer", TTL_S)
    assert older.lead(a)
    older.assign(a, {0: "older", 1: "newer"})
    assert newer.assignment("g") == {0: "older", 1: "newer"}, "the newer one follows the assignment"
    held = older.claim(a, "t", [0])
    assert set(newer.claim(b, "t", [0, 1])) == {1}
    state.commit({leader_key("g"): None})  # the lead changes hands, both live
    assert newer.lead(b)
    newer.assign(b, {0: "newer", 1: "newer"})
    with pytest.raises(msgspec.ValidationError):  # the older process ends here
        older.assignment("g")
    assert newer.claim(b, "t", [0]) == {}, "its claim is its own until its lease has run out"
    older.commit_offsets("g", {("t", 0): CommittedOffset(1)}, claims=list(held.values()))
    older.leave(a)  # as its lease
    assert set(newer.claim(b, "t", [0])) == {0}
    with pytest.raises(StaleWriter):
        older.commit_offsets("g", {("t", 0): CommittedOffset(2)}, claims=list(held.values()))
