"""The leader, its assignments, and the claims of partitions (C2 to C4)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from random import Random
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.coordination.assignment import balance
from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Coordinator, Session
from cellfeed.store.errors import StaleWriter
from cellfeed.store.limits import SHARDS_STORED_MAX
from tests.support.two_clocks import Time


def test_c2_one_member_leads_and_is_replaced_when_it_leaves_or_dies(
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


def test_c2_a_member_that_leaves_ends_no_other_members_lead(coordinator: Coordinator) -> None:
    a, b = coordinator.join("g", "a", 60), coordinator.join("g", "b", 60)
    assert coordinator.lead(a)
    coordinator.leave(b)
    assert coordinator.leader("g") == "a"
    coordinator.assign(a, {0: "a"})
    assert coordinator.assignment("g") == {0: "a"}


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


def test_c4_void_claims_keep_no_other_from_being_given_back(coordinator: Coordinator) -> None:
    a, b = coordinator.join("g", "a", 60), coordinator.join("g", "b", 60)
    for number, void in enumerate(product([False, True], repeat=4)):
        claims = coordinator.claim(a, f"trips-{number}", range(4))
        lost = [partition for partition, is_void in enumerate(void) if is_void]
        coordinator.release([claims[partition] for partition in lost])
        coordinator.claim(b, f"trips-{number}", lost)
        coordinator.release([claims[partition] for partition in range(4)])
        assert coordinator.owners("g", f"trips-{number}") == dict.fromkeys(lost, "b")


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


def test_c4_two_members_never_own_the_same_partition(coordinator: Coordinator) -> None:
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
