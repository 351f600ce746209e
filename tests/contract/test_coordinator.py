"""The coordination contract, promise by promise (C1–C7 in bridge/coordination/contract.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from threading import Barrier
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.coordination.assignment import balance
from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Coordinator, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.zookeeper.client import Operation
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress, parse_zookeeper_url
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import OutcomeUnknown, StaleWriter, StorageUnavailable
from cellfeed.store.limits import SHARDS_STORED_MAX
from cellfeed.testing.zookeeper_tree import ZooKeeperTree


class Time:
    """The store's clock, which may step, and the clock of the processes, which never does; both are
    moved by the test."""

    step_us = 0
    passed_us = 1_700_000_000_000_000

    @property
    def now_us(self) -> int:
        return self.passed_us + self.step_us

    def now_s(self) -> float:
        return self.passed_us / 1e6

    def step_s(self, seconds: float) -> None:
        """Puts the store's clock forward or back: nothing else has passed."""
        self.step_us += int(seconds * 1e6)

    def pass_s(self, seconds: float) -> None:
        self.passed_us += int(seconds * 1e6)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(params=["sqlite", "mysql", "zookeeper", "zookeeper in memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateTable]:
    with ExitStack() as opened:
        if request.param == "mysql":
            engine = opened.enter_context(
                closing(
                    MySqlEngine(
                        MySqlServer(request.getfixturevalue("empty_mariadb").url),
                        "trips",
                        1,
                        create=True,
                    )
                )
            )
            yield engine.state
        else:
            yield opened.enter_context(closing(SqliteState(tmp_path / "state.sqlite3")))


@pytest.fixture
def coordinator(
    request: pytest.FixtureRequest, state: StateTable, time: Time, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Coordinator]:
    wanted = request.node.callspec.params.values()
    if "zookeeper in memory" in wanted:
        tree = ZooKeeperTree()
        connect = lambda _, timeout_s: tree.begin(timeout_s)  # noqa: E731
        with closing(
            ZooKeeperCoordinator(
                ZooKeeperAddress("in memory"), state, clock=time.now_s, connect=connect
            )
        ) as opened:
            yield opened
    elif "zookeeper" in wanted:
        address = parse_zookeeper_url(
            f"{request.getfixturevalue('zookeeper_server').url}/contract-{uuid4()}"
        )
        with closing(ZooKeeperCoordinator(address, state, clock=time.now_s)) as opened:
            yield opened
    else:
        monkeypatch.setattr(state, "now_us", lambda: time.now_us)
        yield StoreCoordinator(state, clock=time.now_s)


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


def test_c1_a_member_that_comes_back_after_days_is_welcome(
    coordinator: Coordinator, time: Time
) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 10)
    time.pass_s(3 * 86_400)
    assert coordinator.renew(a).epoch > a.epoch
    assert coordinator.members("g") == ["a"]
    assert coordinator.join("g", "b", 10).epoch > b.epoch
    assert coordinator.members("g") == ["a", "b"]


HOUR_S = 3600.0


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
def test_c1_a_renewal_that_broke_off_is_gone_on_with_unless_another_process_has_joined(
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
def test_c1_a_renewal_whose_answer_got_lost_in_zookeeper_is_gone_on_with_unless_another_process_has_joined(  # noqa: E501
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


def test_c2_one_member_leads_and_is_replaced_when_it_goes(
    coordinator: Coordinator, time: Time
) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 10)
    assert coordinator.lead(a)
    assert not coordinator.lead(b)
    assert coordinator.leader("g") == "a"
    time.pass_s(9)
    a, b = coordinator.renew(a), coordinator.renew(b)
    assert coordinator.lead(a)
    time.pass_s(9)
    b = coordinator.renew(b)
    assert not coordinator.lead(b)
    time.pass_s(2)
    assert coordinator.leader("g") is None
    assert not coordinator.lead(a), "its lease has run out: it must renew first"
    assert coordinator.lead(b)
    a = coordinator.renew(a)
    assert not coordinator.lead(a)
    coordinator.leave(b)
    assert coordinator.leader("g") is None
    assert coordinator.lead(a)


def test_c3_only_the_leader_assigns(coordinator: Coordinator, time: Time) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 10)
    assert coordinator.assignment("g") == {}
    with pytest.raises(StaleWriter, match="does not lead"):
        coordinator.assign(a, {0: "a"})
    assert coordinator.lead(a)
    coordinator.assign(a, {0: "a", 1: "b"})
    assert coordinator.assignment("g") == {0: "a", 1: "b"}
    with pytest.raises(StaleWriter):
        coordinator.assign(b, {0: "b"})
    time.pass_s(11)
    with pytest.raises(StaleWriter):
        coordinator.assign(a, {0: "a"})
    assert coordinator.assignment("g") == {0: "a", 1: "b"}


def test_c3_an_assignment_may_have_every_shard_that_a_datastore_can_have(
    coordinator: Coordinator,
) -> None:
    a = coordinator.join("g", "a", 10)
    assert coordinator.lead(a)
    assignment = {shard: f"member-{shard % 3}" for shard in range(SHARDS_STORED_MAX)}
    coordinator.assign(a, assignment)
    assert coordinator.assignment("g") == assignment
    assert coordinator.assignment("g") is coordinator.assignment("g")


def test_c4_of_thousands_of_partitions_all_are_claimed_that_are_free(
    coordinator: Coordinator, time: Time
) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 10)
    taken = coordinator.claim(b, "t", [0, 999, 1_000, 1_100])
    claims = coordinator.claim(a, "t", range(1_101))
    assert set(claims) == set(range(1_101)) - set(taken)
    coordinator.release([*claims.values(), *taken.values()])
    assert not coordinator.owners("g", "t")
    assert len(coordinator.claim(a, "t", range(1_101))) == 1_101
    coordinator.release(claims.values())
    assert len(coordinator.owners("g", "t")) == 1_101, "void claims release nothing"


def test_c4_a_claim_is_one_members_until_released_or_its_session_has_ended(
    coordinator: Coordinator, time: Time
) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 30)
    first = coordinator.claim(a, "trips", [0])[0]
    assert set(coordinator.claim(b, "trips", [0, 1, 2])) == {1, 2}
    assert coordinator.owners("g", "trips") == {0: "a", 1: "b", 2: "b"}
    assert coordinator.owners("g", "trips", [2, 1, 7]) == {1: "b", 2: "b"}
    assert coordinator.owners("g", "other") == coordinator.owners("g", "other", [0]) == {}
    coordinator.release([first])
    second = coordinator.claim(b, "trips", [0])[0]
    coordinator.release([first])  # void: nothing happens
    assert coordinator.owners("g", "trips")[0] == "b"
    coordinator.release([first, second])  # one void among them keeps no other
    third = coordinator.claim(a, "trips", [0])[0]
    time.pass_s(11)
    fourth = coordinator.claim(b, "trips", [0])[0]
    assert first.token < second.token < third.token < fourth.token


def test_c4_a_session_that_has_ended_claims_nothing_until_it_is_renewed(
    coordinator: Coordinator, time: Time
) -> None:
    a = coordinator.join("g", "a", 10)
    before = coordinator.claim(a, "trips", [0])[0]
    time.pass_s(11)
    assert coordinator.claim(a, "trips", [0]) == {}
    coordinator.commit_offsets(
        "g", {("trips", 0): CommittedOffset(1)}, claims=[before]
    )  # nobody took it over: it still holds
    after = coordinator.claim(coordinator.renew(a), "trips", [0])[0]
    assert after.token > before.token
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(2)}, claims=[before])


def test_c4_many_members_at_once_never_hold_the_same_partition(coordinator: Coordinator) -> None:
    partitions = range(40)
    sessions = [coordinator.join("g", name, 60) for name in "abcd"]
    together = Barrier(len(sessions))

    def claim(session: Session) -> dict[int, Claim]:
        together.wait()
        return coordinator.claim(session, "trips", partitions)

    with ThreadPoolExecutor(len(sessions)) as pool:
        got = list(pool.map(claim, sessions))
    assert sorted(partition for each in got for partition in each) == list(partitions)
    for session, each in zip(sessions, got, strict=True):
        assert each == {} or {
            coordinator.owners("g", "trips")[partition] for partition in each
        } == {session.member}


def test_c5_a_void_claim_moves_no_offset_and_writes_nothing_along(
    coordinator: Coordinator, time: Time
) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 30)
    claims = coordinator.claim(a, "trips", [0, 1])
    old, kept = claims[0], claims[1]
    coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(5)}, claims=[old])
    coordinator.commit_offsets("g", {}, claims=[old, kept])
    time.pass_s(11)
    new = coordinator.claim(b, "trips", [0])[0]
    coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(9)}, claims=[new])
    coordinator.renew(a)
    with pytest.raises(StaleWriter, match="taken over"):
        coordinator.commit_offsets(
            "g",
            {("trips", 0): CommittedOffset(6), ("trips", 1): CommittedOffset(1)},
            claims=[old, kept],
            entries={"x": b"1"},
        )
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets("g", {}, claims=[old])
    assert {key: value.offset for key, value in coordinator.fetch_offsets("g").items()} == {
        ("trips", 0): 9
    }
    coordinator.commit_offsets("g", {("trips", 1): CommittedOffset(1)}, claims=[kept])


def test_c6_offsets_are_kept_per_group_with_their_metadata(coordinator: Coordinator) -> None:
    name = "odd/ \u00e9%2F group"
    coordinator.commit_offsets(
        name,
        {("trips", 3): CommittedOffset(7, 2, "m\u00e9ta"), ("trips.BASE", 3): CommittedOffset(1)},
    )
    coordinator.commit_offsets("g", {("trips", 3): CommittedOffset(1)})
    fetched = coordinator.fetch_offsets(name)
    assert {key: (o.offset, o.leader_epoch, o.metadata) for key, o in fetched.items()} == {
        ("trips", 3): (7, 2, "m\u00e9ta"),
        ("trips.BASE", 3): (1, -1, ""),
    }
    assert list(coordinator.fetch_offsets(name, [("trips", 3), ("trips", 4)])) == [("trips", 3)]
    assert list(coordinator.fetch_offsets(name, [("trips", shard) for shard in range(100)])) == [
        ("trips", 3)
    ]
    assert coordinator.groups() == sorted(["g", name])
    assert fetched[("trips", 3)].committed_at_us > 0
    coordinator.delete_offsets(name)
    assert coordinator.groups() == ["g"]
    assert coordinator.fetch_offsets(name) == {}


def test_c6_offsets_of_some_partitions_are_deleted_and_the_others_stay(
    coordinator: Coordinator,
) -> None:
    name, topic = "odd/ \u00e9%2F group", "a/\u00e9%"
    given = {
        ("trips", 3): CommittedOffset(7, 2, "why"),
        ("trips", 4): CommittedOffset(8, 2, "why"),
        (topic, 3): CommittedOffset(9),
    }
    coordinator.commit_offsets(name, given)
    coordinator.commit_offsets("g", given)
    coordinator.delete_offsets(name, [("trips", 3), ("trips", 9), (topic, 3), ("nobodys", 0)])
    assert [
        (key, each.offset, each.metadata) for key, each in coordinator.fetch_offsets(name).items()
    ] == [(("trips", 4), 8, "why")]
    coordinator.delete_offsets(name, [])
    assert coordinator.groups() == sorted(["g", name])
    coordinator.delete_offsets(name, [("trips", 4)])
    assert coordinator.groups() == ["g"], "without any offset it is no group"
    assert coordinator.fetch_offsets("g").keys() == given.keys()
    coordinator.commit_offsets(name, given)
    assert coordinator.fetch_offsets(name).keys() == given.keys()


def test_c6_the_lineage_of_a_group_stays_through_commits_and_deletes(
    coordinator: Coordinator,
) -> None:
    before = coordinator.lineage("g")
    coordinator.commit_offsets("g", {("trips", 3): CommittedOffset(7)})
    coordinator.delete_offsets("g")
    assert coordinator.lineage("g") == before


NAMES = st.sets(st.sampled_from("abcdefgh"), max_size=6)


@given(st.integers(0, 60), NAMES, NAMES, st.randoms(use_true_random=False))
def test_partitions_are_divided_evenly_and_no_more_than_needed_move(
    partitions: int, before: set[str], after: set[str], chance: Random
) -> None:
    current = {p: chance.choice(sorted(before)) for p in range(partitions)} if before else {}
    result = balance(partitions, sorted(after), current)
    if not after:
        assert result == {}
        return
    assert sorted(result) == list(range(partitions))
    shares = {name: [p for p, owner in result.items() if owner == name] for name in after}
    assert max(map(len, shares.values())) - min(map(len, shares.values())) <= 1
    assert set(result.values()) <= after
    # A partition moves only because its owner is gone or holds more than its share.
    floor = partitions // len(after)
    for name in after:
        mine = [p for p, owner in current.items() if owner == name]
        kept = [p for p in mine if result[p] == name]
        assert len(kept) >= min(len(mine), floor)
    assert balance(partitions, sorted(after), result) == result
