"""Members, their leases, their epochs and their names (C1, C7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.zookeeper.client import Operation
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import OutcomeUnknown, StaleWriter, StorageUnavailable
from tests.support.two_clocks import HOUR_S, Time


def test_c1_a_member_is_alive_until_it_leaves_or_its_lease_runs_out(
    coordinator: Coordinator, time: Time
) -> None:
    a, b = coordinator.join("g", "a/1", 10), coordinator.join("g", "b", 10)
    assert coordinator.members("g") == ["a/1", "b"]
    assert coordinator.members("other") == []
    time.pass_s(6)
    assert coordinator.renew(a) == a
    time.pass_s(6)
    assert coordinator.members("g") == ["a/1"]
    again = coordinator.renew(b)
    assert coordinator.members("g") == ["a/1", "b"]
    assert again.epoch > b.epoch
    assert coordinator.renew(again) == again
    coordinator.leave(a)
    assert coordinator.members("g") == ["b"]


def test_c1_a_member_that_returns_after_days_is_welcome(
    coordinator: Coordinator, time: Time
) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 10)
    time.pass_s(3 * 86_400)
    assert coordinator.renew(a).epoch > a.epoch
    assert coordinator.members("g") == ["a"]
    assert coordinator.join("g", "b", 10).epoch > b.epoch
    assert coordinator.members("g") == ["a", "b"]


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, 4.0, -4.0])
def test_c1_a_step_of_the_stores_clock_ends_no_lease_and_makes_none_longer(
    coordinator: Coordinator, time: Time, step_s: float
) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 10)
    assert coordinator.lead(a)
    assert coordinator.members("g") == ["a", "b"]
    time.pass_s(2)
    b = coordinator.renew(b)  # which nobody has seen when the clock steps
    time.step_s(step_s)
    time.pass_s(1)
    assert coordinator.members("g") == ["a", "b"]
    assert not coordinator.lead(b)
    assert coordinator.claim(a, "trips", [0])
    assert coordinator.renew(a) == a
    assert coordinator.renew(b) == b
    time.pass_s(6)
    assert coordinator.members("g") == ["a", "b"]
    assert coordinator.renew(b) == b
    time.pass_s(5)
    assert coordinator.members("g") == ["b"], "a has not renewed for longer than its lease"
    assert coordinator.lead(b)
    assert set(coordinator.claim(b, "trips", [0])) == {0}
    time.pass_s(11)
    assert coordinator.members("g") == []


@pytest.mark.parametrize("state", ["sqlite", "mysql"], indirect=True)
@pytest.mark.parametrize("ahead_s", [HOUR_S, 30.0, 5.0, -5.0, -HOUR_S])
def test_c1_a_member_that_died_while_its_clock_was_wrong_keeps_nothing_for_longer_than_its_lease(
    coordinator: Coordinator, state: StateTable, time: Time, ahead_s: float
) -> None:
    time.step_s(ahead_s)
    dead = coordinator.join("g", "dead", 10)
    assert set(coordinator.claim(dead, "trips", [0, 1])) == {0, 1}
    time.step_s(-ahead_s)
    other = StoreCoordinator(
        state, clock=time.now_s
    )  # another process, which sees that lease for the first time
    heir = other.join("g", "heir", 10)
    other.members("g")
    time.pass_s(6)
    assert other.renew(heir) == heir
    time.pass_s(5)
    assert other.members("g") == ["heir"]
    assert set(other.claim(heir, "trips", [0, 1])) == {0, 1}


@pytest.mark.parametrize("state", ["sqlite", "mysql"], indirect=True)
@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_c1_a_member_whose_clock_is_wrong_is_alive_while_it_renews(
    coordinator: Coordinator, state: StateTable, time: Time, ahead_s: float
) -> None:
    other = StoreCoordinator(state, clock=time.now_s)
    right = other.join("g", "right", 10)
    time.step_s(ahead_s)
    wrong = coordinator.join("g", "wrong", 10)
    seen = []
    for _ in range(6):
        time.step_s(-ahead_s)
        right = other.renew(right)
        seen.append(other.members("g"))
        time.step_s(ahead_s)
        wrong = coordinator.renew(wrong)
        seen.append(coordinator.members("g"))
        time.pass_s(2.5)
    assert seen[2:] == [["right", "wrong"]] * 10, (
        "only the first sight goes by the clock of another process"
    )


def test_c7_joining_under_a_name_in_use_ends_the_earlier_session(coordinator: Coordinator) -> None:
    old = coordinator.join("g", "a", 10)
    assert coordinator.lead(old)
    [old_claim] = coordinator.claim(old, "trips", [0]).values()
    new = coordinator.join("g", "a", 10)
    assert new.epoch > old.epoch
    assert coordinator.members("g") == ["a"]
    with pytest.raises(StaleWriter, match="another process has joined"):
        coordinator.renew(old)
    assert not coordinator.lead(old)
    with pytest.raises(StaleWriter):
        coordinator.assign(old, {0: "a"})
    assert coordinator.claim(old, "trips", [0, 1]) == {}
    coordinator.leave(old)
    assert coordinator.renew(new) == new
    assert coordinator.lead(new)
    # No lease to wait for: the earlier session's claims are free at once, and void once taken.
    [new_claim] = coordinator.claim(new, "trips", [0]).values()
    assert new_claim.token > old_claim.token
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(1)}, claims=[old_claim])


@pytest.mark.parametrize("state", ["sqlite", "mysql"], indirect=True)
@pytest.mark.parametrize("answers_lost", [1, 2])
@pytest.mark.parametrize("commits", [True, False], ids=["it was committed", "nothing was written"])
def test_c1_a_renewal_that_broke_off_is_resumed_unless_another_process_has_joined(
    coordinator: Coordinator,
    state: StateTable,
    time: Time,
    monkeypatch: pytest.MonkeyPatch,
    answers_lost: int,
    commits: bool,
) -> None:
    old = coordinator.join("g", "a", 10)
    time.pass_s(11)
    commit, sent = state.commit, list[object]()

    def losing(
        write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        sent.append(write)
        done = commit(write, expect) if commits or len(sent) < answers_lost else None
        if len(sent) >= answers_lost:
            raise OutcomeUnknown("the commit's fate is not known")
        return done

    monkeypatch.setattr(state, "commit", losing)
    with pytest.raises(OutcomeUnknown):
        coordinator.renew(old)
    assert len(sent) == answers_lost  # the member's entry; its lease
    monkeypatch.setattr(state, "commit", commit)
    check_gone_on_with(coordinator, old)


def check_gone_on_with(coordinator: Coordinator, old: Session) -> None:
    """The next renewal of a member's session begins a new one, until another process joins under
    its name."""
    new = coordinator.renew(old)
    assert new.epoch > old.epoch
    assert coordinator.members("g") == ["a"]
    assert coordinator.lead(new)
    assert coordinator.renew(new) == new
    coordinator.join("g", "a", 10)
    for ended in (old, new):
        with pytest.raises(StaleWriter, match="another process has joined"):
            coordinator.renew(ended)


@pytest.mark.parametrize("state", ["zookeeper", "zookeeper in memory"], indirect=True)
def test_c1_a_renewal_whose_answer_zookeeper_lost_is_resumed_unless_another_process_has_joined(
    coordinator: ZooKeeperCoordinator, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = coordinator.join("g", "a", 10)
    time.pass_s(11)
    connection = coordinator._connection(10)
    commit = connection.commit

    def losing(operations: Sequence[Operation], **more: object) -> None:
        commit(operations, **more)  # type: ignore[arg-type]
        raise StorageUnavailable("the connection is lost")

    for _ in range(2):
        monkeypatch.setattr(connection, "commit", losing)
        with pytest.raises(StorageUnavailable):
            coordinator.renew(old)
        monkeypatch.setattr(connection, "commit", commit)
    check_gone_on_with(coordinator, old)


def test_c7_epochs_rise_through_every_leave_and_return(
    coordinator: Coordinator, time: Time
) -> None:
    epochs = []
    for lifetime_s in (1, 11, 1, 4000, 11):
        session = coordinator.join("g", "a", 10)
        epochs.append(session.epoch)
        time.pass_s(lifetime_s)
        if lifetime_s == 1:
            coordinator.leave(session)
            assert coordinator.members("g") == []
    assert epochs == sorted(set(epochs))
