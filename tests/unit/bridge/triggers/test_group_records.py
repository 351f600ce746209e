"""Two processes at once at the records of a group: a definition, a pause; and a lease, a wait for
the store and the end of a worker when something fails."""

from __future__ import annotations

import logging
import os
import pwd
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups import join_and_drain
from cellfeed.bridge.groups.control import Control
from cellfeed.bridge.groups.definition import (
    Definition,
    check_definition,
    definition_key,
    definition_of,
    let_change,
    refuse_consumers,
)
from cellfeed.bridge.groups.history import Operator, history, operator
from cellfeed.bridge.groups.join_and_drain import drain, join
from cellfeed.bridge.groups.membership import LeaseKeeper, Membership
from cellfeed.bridge.groups.start import StartOfGroup, forget_start, recorded_start
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import (
    GroupTaken,
    NotFound,
    Refused,
    StaleWriter,
    StorageUnavailable,
    Unavailable,
)
from cellfeed.store.failpoints import watch_failpoint
from tests.support.waiting import wait_until

GROUP = "rides"
BY = Operator("somebody@here", "a look at the fares")
BILL = Definition(["BASE"], "app:bill")
LEASE_S = 600.0


def before_commit(
    state: StateTable, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """Has something done by another process just before the next commit."""
    commit = state.commit

    def overtaken(*arguments: Any, **how: Any) -> Any:
        monkeypatch.setattr(state, "commit", commit)
        meanwhile()
        return commit(*arguments, **how)

    monkeypatch.setattr(state, "commit", overtaken)


def test_of_two_entries_named_at_once_the_second_is_refused(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = datastore.state
    check_definition(state, GROUP, BILL)
    one, two = (Definition(["BASE"], "app:bill", entry) for entry in ("one", "two"))
    before_commit(state, monkeypatch, lambda: check_definition(state, GROUP, one))
    with pytest.raises(GroupTaken, match="entry 'one'"):
        check_definition(state, GROUP, two)
    assert definition_of(state, GROUP) == one
    check_definition(state, GROUP, BILL)
    assert definition_of(state, GROUP) == one


def test_a_definition_that_others_change_all_the_time_is_given_up(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_definition(datastore.state, GROUP, BILL)
    monkeypatch.setattr(datastore.state, "commit", lambda *_, **__: None)
    with pytest.raises(Unavailable, match="others are faster"):
        check_definition(datastore.state, GROUP, Definition(["BASE"], "app:bill", "one"))


def test_of_two_operators_that_change_a_definition_at_once_one_gets_an_error(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, coordinator = datastore.state, StoreCoordinator(datastore.state)
    check_definition(state, GROUP, BILL)
    other = Operator("another@here", "the same")
    before_commit(state, monkeypatch, lambda: let_change(state, coordinator, GROUP, other))
    with pytest.raises(Refused, match="changed just now"):
        let_change(state, coordinator, GROUP, BY)
    assert definition_of(state, GROUP) is None
    assert [deed.by for deed in history(state, GROUP)] == [other.name]


@pytest.mark.parametrize("has_members", [False, True])
def test_a_definition_recorded_again_meanwhile_is_neither_deleted_nor_unmarked(
    datastore: Datastore, has_members: bool
) -> None:
    """A slow operator; a faster one has ended the change, and a worker has recorded its own."""
    state, coordinator = datastore.state, StoreCoordinator(datastore.state)
    check_definition(state, GROUP, BILL)
    newer = Definition(["REFUND"], "app:refund")

    def faster() -> None:
        state.commit({definition_key(GROUP): None})
        check_definition(state, GROUP, newer)
        if has_members:
            coordinator.join(GROUP, "a", LEASE_S)

    watch_failpoint("definition.marked", faster)
    with pytest.raises(Refused):
        let_change(state, coordinator, GROUP, BY)
    assert definition_of(state, GROUP) == newer
    assert history(state, GROUP) == []


def test_a_group_with_members_is_not_marked_as_being_changed(datastore: Datastore) -> None:
    state, coordinator = datastore.state, StoreCoordinator(datastore.state)
    check_definition(state, GROUP, BILL)
    coordinator.join(GROUP, "a", LEASE_S)
    for _ in range(2):
        with pytest.raises(Refused, match="is at work"):
            let_change(state, coordinator, GROUP, BY)
    check_definition(state, GROUP, BILL)


@pytest.mark.parametrize(
    "left_behind",
    [
        f"triggers/{GROUP}/about",
        f"starts/{GROUP}/trips",
        f"trigger-history/{GROUP}/1-a",
        f"foothold/{GROUP}/shards/0",
        f"parked/{GROUP}/0",
    ],
)
def test_offsets_of_a_trigger_of_before_are_not_taken_for_a_consumer_groups(
    datastore: Datastore, left_behind: str
) -> None:
    state, offsets = datastore.state, StoreCoordinator(datastore.state)
    refuse_consumers(state, offsets, GROUP)
    offsets.commit_offsets(GROUP, {("trips", 0): CommittedOffset(7)})
    state.commit({left_behind.replace(GROUP, "rides2"): b""})
    with pytest.raises(GroupTaken):
        refuse_consumers(state, offsets, GROUP)
    state.commit({left_behind: b""})
    refuse_consumers(state, offsets, GROUP)
    state.commit({left_behind: None})
    check_definition(state, GROUP, BILL)
    refuse_consumers(state, offsets, GROUP)


def test_a_renewed_pause_is_not_ended_by_an_operator_who_saw_the_first_one(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = Control(datastore.state, GROUP)
    control.pause(BY)
    anew = Operator("another@here", "the fares are wrong")

    def meanwhile() -> None:
        control.resume(BY)
        control.pause(anew)

    before_commit(datastore.state, monkeypatch, meanwhile)
    with pytest.raises(NotFound):
        control.resume(BY)
    found = control.paused()
    assert found is not None
    assert found.by == anew.name
    assert [deed.action for deed in history(datastore.state, GROUP)] == [
        "paused",
        "resumed",
        "paused",
    ]


def test_pausing_and_resuming_poke_the_workers(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        "cellfeed.bridge.groups.control.notify_workers", lambda _state, group: told.append(group)
    )
    control = Control(datastore.state, GROUP)
    control.pause(BY)
    assert told == [GROUP]
    control.resume(BY)
    assert told == [GROUP] * 2


def test_a_forgotten_start_is_chosen_again(datastore: Datastore) -> None:
    state = datastore.state
    offsets = StoreCoordinator(state)
    for group in (GROUP, "other"):
        StartOfGroup(datastore, offsets, group, "earliest").locations()
    forget_start(state, GROUP, datastore.name)
    assert recorded_start(state, GROUP, datastore.name) is None
    assert recorded_start(state, "other", datastore.name) is not None


def test_an_operator_without_a_user_name_is_recorded_by_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert operator("why").name.startswith(f"uid {os.getuid()}@")


# --- leases ---------------------------------------------------------------------------------------


class Coordination(StoreCoordinator):
    """Raises the error of a test in :meth:`renew`."""

    error: Exception | None = None
    renewed: int = 0

    def renew(self, session: Session) -> Session:
        self.renewed += 1
        if self.error is not None:
            raise self.error
        return super().renew(session)


def test_a_member_whose_name_was_taken_cannot_renew(datastore: Datastore) -> None:
    coordination = Coordination(datastore.state)
    member = Membership(coordination, GROUP, "a", LEASE_S)
    coordination.error = StaleWriter("another process is a")
    member.renew()
    assert member.superseded is coordination.error
    coordination.error = None
    member.renew()
    assert coordination.renewed == 1


class Passing:
    """A clock that a call moves on."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_member_is_sure_of_its_shards_for_a_lease_from_before_the_call(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the coordinator's clock the lease began later, never earlier."""
    clock, coordination = Passing(), Coordination(datastore.state)
    join, renew = coordination.join, coordination.renew

    def slowly(call: Callable[..., Session]) -> Callable[..., Session]:
        def called(*arguments: Any) -> Session:
            clock.now_s += 100
            return call(*arguments)

        return called

    monkeypatch.setattr(coordination, "join", slowly(join))
    monkeypatch.setattr(coordination, "renew", slowly(renew))
    member = Membership(coordination, GROUP, "a", LEASE_S, clock=clock)
    epoch = member.session.epoch
    assert clock.now_s == 1_100
    assert not member.is_sure(epoch + 1)
    clock.now_s = 1_000 + LEASE_S - 1
    assert member.is_sure(epoch)
    clock.now_s = 1_000 + LEASE_S
    assert not member.is_sure(epoch)
    member.renew()
    assert member.session.epoch == epoch
    clock.now_s += LEASE_S - 101
    assert member.is_sure(epoch)
    clock.now_s += 1
    assert not member.is_sure(epoch)
    coordination.error = StorageUnavailable("planted")
    with pytest.raises(Unavailable):
        member.renew()
    assert not member.is_sure(epoch), "a renewal that failed extends nothing"
    assert member.in_touch_s() == 0


def test_a_claim_of_an_ended_session_is_not_sure_in_the_next(
    datastore: Datastore,
) -> None:
    coordination = Coordination(datastore.state)
    member = Membership(coordination, GROUP, "a", LEASE_S)
    before = member.session
    coordination.leave(before)
    member.renew()
    assert member.session.epoch != before.epoch
    assert member.is_sure(member.session.epoch)
    assert not member.is_sure(before.epoch)


def test_a_member_that_left_does_not_rejoin_by_a_late_renewal(datastore: Datastore) -> None:
    coordination = Coordination(datastore.state)
    member = Membership(coordination, GROUP, "a", LEASE_S)
    member.leave()
    member.renew()
    assert coordination.renewed == 0
    assert coordination.members(GROUP) == []


def test_a_defect_or_an_outage_in_one_group_costs_no_other_its_lease(
    datastore: Datastore, caplog: pytest.LogCaptureFixture
) -> None:
    defective, away, sound = (Coordination(datastore.state) for _ in range(3))
    members = [
        Membership(coordination, group, "a", LEASE_S)
        for coordination, group in ((defective, "one"), (away, "two"), (sound, "three"))
    ]
    defective.error = ZeroDivisionError("a defect")
    away.error = StorageUnavailable("planted")
    keeper = LeaseKeeper(members, 0.04)
    try:
        wait_until(lambda: sound.renewed >= 3, "the third group's lease is renewed again and again")
    finally:
        keeper.close()
    assert any("not renewed by a defect: ZeroDivisionError" in each for each in caplog.messages)
    assert any("in group two could not be renewed" in each for each in caplog.messages)


# --- joining and draining -------------------------------------------------------------------------

LOG = logging.getLogger("cellfeed.test")


def test_a_group_is_joined_once_the_store_is_back_unless_the_process_is_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join_and_drain, "JOIN_AGAIN_S", 0.001)
    stop, tries = threading.Event(), 0

    def joined() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StorageUnavailable("planted")
        return tries

    assert join(stop, joined, LOG) == 3

    def asked_to_end() -> int:
        stop.set()
        raise StorageUnavailable("planted")

    assert join(stop, asked_to_end, LOG) is None


class Share:
    """Is drained at a given call; fails at those before."""

    def __init__(self, at: int, error: Exception | None = None) -> None:
        self.at, self.error, self.calls = at, error, 0

    def drain(self) -> bool:
        self.calls += 1
        if self.calls < self.at and self.error is not None:
            raise self.error
        return self.calls >= self.at


def test_all_shares_are_drained_and_a_busy_one_is_asked_again() -> None:
    shares = [Share(1), Share(3), Share(2, StorageUnavailable("planted"))]
    assert drain(shares, 60.0, LOG)
    assert shares[0].calls <= 2
    assert all(share.calls >= share.at for share in shares)


def test_drain_reports_false_when_a_share_is_not_done_in_time() -> None:
    never = Share(10**9)
    assert not drain([never, Share(1)], 0.05, LOG)
    assert never.calls > 1
    assert drain([], 0.0, LOG)
