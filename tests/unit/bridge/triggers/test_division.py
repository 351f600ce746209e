"""The shards that a leader divides: at once those that nobody has claimed, and those of absent
members once it is clear that they do not come back with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from cellfeed.bridge.coordination.assignment import RETURN_S
from cellfeed.bridge.coordination.contract import Claim, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.control import OPERATOR
from cellfeed.bridge.groups.division import Division
from cellfeed.bridge.groups.membership import RENEWALS_IN_A_LEASE, Membership
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable, Unavailable

GROUP, TOPIC = "g", "trips"
PARTITIONS = 6
LEASE_S = 600.0
"""Of the store's clock, which continues by itself: nothing here runs out."""

MOMENT_S = RETURN_S + LEASE_S / RENEWALS_IN_A_LEASE
LONG_S = 10 * MOMENT_S


@dataclass
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Coordination(StoreCoordinator):
    """Is away when told so; an answer takes ``takes_s`` of the clock."""

    def __init__(self, datastore: Datastore, clock: Clock) -> None:
        super().__init__(datastore.state)
        self._passing = clock
        self.away = False
        self.takes_s = 0.0

    def renew(self, session: Session) -> Session:
        self._passing.now_s += self.takes_s
        if self.away:
            raise StorageUnavailable("planted")
        return super().renew(session)


class Fleet:
    """Members of one group, each with all that it was given claimed. The first one leads."""

    def __init__(self, datastore: Datastore, names: str) -> None:
        self.clock = Clock()
        self.coordination = Coordination(datastore, self.clock)
        self.memberships = {name: self.joined(name) for name in names}
        self.leader = self.memberships[names[0]]
        self.division = Division(self.coordination, self.leader, TOPIC, clock=self.clock)
        self.claims: dict[str, list[Claim]] = {}
        self.divide()
        for name in names:
            shares = [
                partition for partition, member in self.assignment().items() if member == name
            ]
            self.claims[name] = list(
                self.coordination.claim(self.memberships[name].session, TOPIC, shares).values()
            )

    def joined(self, name: str) -> Membership:
        return Membership(self.coordination, GROUP, name, LEASE_S, clock=self.clock)

    def ends(self, *names: str) -> None:
        """The sessions of these do, as if their leases had run out: their claims stay."""
        for name in names:
            self.coordination.leave(self.memberships[name].session)

    def divide(self) -> bool:
        assert self.coordination.lead(self.leader.session)
        return self.division.divide(PARTITIONS, self.coordination.members(GROUP))

    def assignment(self) -> Mapping[int, str]:
        return self.coordination.assignment(GROUP)

    def shares(self, names: Sequence[str]) -> list[int]:
        members = list(self.assignment().values())
        return [members.count(name) for name in names]


def test_a_member_that_dies_while_the_leader_is_in_touch_is_replaced_at_once(
    datastore: Datastore,
) -> None:
    fleet = Fleet(datastore, "abc")
    fleet.clock.now_s += LONG_S
    fleet.leader.renew()
    fleet.ends("b")
    assert fleet.divide()
    assert fleet.shares("abc") == [3, 0, 3]


def test_a_leader_in_a_new_session_leaves_absent_members_their_shards_until_they_are_back(
    datastore: Datastore,
) -> None:
    fleet = Fleet(datastore, "abc")
    fleet.clock.now_s += LONG_S
    fleet.ends("a", "b", "c")
    before = fleet.assignment()
    fleet.leader.renew()
    assert not fleet.divide()
    fleet.memberships["b"].renew()
    fleet.clock.now_s += MOMENT_S / 2
    assert not fleet.divide()
    fleet.memberships["c"].renew()
    fleet.clock.now_s += LONG_S
    assert not fleet.divide()
    assert fleet.assignment() == before


def test_a_member_that_does_not_return_is_replaced_when_the_moment_is_over(
    datastore: Datastore,
) -> None:
    fleet = Fleet(datastore, "abc")
    fleet.ends("a", "b")
    fleet.leader.renew()
    assert not fleet.divide()
    fleet.clock.now_s += 0.9 * MOMENT_S
    assert not fleet.divide()
    fleet.clock.now_s += 0.2 * MOMENT_S
    assert fleet.divide()
    assert fleet.shares("abc") == [3, 0, 3]


@pytest.mark.parametrize("how", ["cut off", "slow"])
def test_a_leader_that_kept_its_session_through_an_outage_waits_for_the_others_too(
    datastore: Datastore, how: str
) -> None:
    fleet = Fleet(datastore, "ab")
    fleet.clock.now_s += LONG_S
    if how == "cut off":
        fleet.coordination.away = True
        with pytest.raises(Unavailable):
            fleet.leader.renew()
        fleet.coordination.away = False
    else:  # it was back before the call was over
        fleet.coordination.takes_s = 1.5
    fleet.leader.renew()
    fleet.ends("b")
    assert not fleet.divide()
    fleet.clock.now_s += MOMENT_S
    assert fleet.divide()


def test_while_failures_continue_no_member_is_awaited_longer_than_the_moment(
    datastore: Datastore,
) -> None:
    fleet = Fleet(datastore, "ab")
    fleet.ends("b")
    for _ in range(4):
        fleet.coordination.away = True
        with pytest.raises(Unavailable):
            fleet.leader.renew()
        fleet.coordination.away = False
        fleet.leader.renew()
        assert not fleet.divide()
        fleet.clock.now_s += 0.3 * MOMENT_S
    assert fleet.divide()
    assert fleet.shares("ab") == [PARTITIONS, 0]


def test_each_new_session_of_the_leader_has_a_moment_of_its_own(datastore: Datastore) -> None:
    fleet = Fleet(datastore, "ab")
    for _ in range(3):
        fleet.ends("a", *(["b"] if "b" in fleet.coordination.members(GROUP) else []))
        fleet.leader.renew()
        assert not fleet.divide()
        fleet.clock.now_s += 0.6 * MOMENT_S
    assert not fleet.divide()
    fleet.clock.now_s += 0.6 * MOMENT_S
    assert fleet.divide()


def test_shards_given_back_in_good_order_are_assigned_to_others_at_once(
    datastore: Datastore,
) -> None:
    fleet = Fleet(datastore, "abc")
    fleet.coordination.release(fleet.claims["b"])
    fleet.ends("b", "c")
    assert fleet.divide()
    assert fleet.shares("abc") == [4, 0, 2], "c has left nothing, it may come back"


def test_a_newcomer_shares_with_present_members_while_absent_ones_are_awaited(
    datastore: Datastore,
) -> None:
    fleet = Fleet(datastore, "ab")
    fleet.ends("a", "b")
    fleet.leader.renew()
    fleet.joined("c")
    assert fleet.divide()
    assert fleet.shares("abc") == [2, 3, 1]


def test_operators_are_assigned_no_shards(datastore: Datastore) -> None:
    fleet = Fleet(datastore, "ab")
    fleet.joined(f"{OPERATOR}somebody")
    assert not fleet.divide()
