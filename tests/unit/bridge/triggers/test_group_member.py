"""When a member of a group looks: at its assignment several times in a lease, at once after a poke
or in a new session; the questions that operators ask once a second; and the shards that it gives
back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cellfeed.bridge.coordination.contract import Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups import member as module
from cellfeed.bridge.groups import progress_reporter
from cellfeed.bridge.groups.control import Control, poke_of
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.groups.member import (
    CONTROL_LOOK_S,
    LOOK_SOON_S,
    LOOKS_IN_A_LEASE,
    GroupMember,
)
from cellfeed.bridge.groups.progress_records import (
    NOT_STARTED,
    REPORT_AGAIN_S,
    Progress,
    WorkerRecord,
    worker_record,
)
from cellfeed.bridge.groups.progress_reporter import FORGOTTEN_AFTER_S, REPORT_EVERY_S
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import StaleWriter, StorageUnavailable, Unavailable

GROUP = "rides"
LEASE_S = 600.0
PART_S = LEASE_S / LOOKS_IN_A_LEASE
BY = Operator("somebody@here", "a look at the fares")


class Coordination(StoreCoordinator):
    """Fails once in the next call of a name."""

    fails: str = ""

    def __init__(self, state: StateTable) -> None:
        super().__init__(state)
        self.released: list[list[int]] = []

    def _perhaps(self, name: str) -> None:
        if self.fails == name:
            self.fails = ""
            raise StorageUnavailable("planted")

    def release(self, claims: Any) -> Any:
        self._perhaps("release")
        self.released.append(sorted(claim.partition for claim in claims))
        return super().release(claims)

    def leave(self, session: Session) -> None:
        self._perhaps("leave")
        super().leave(session)


class Clock:
    now_s = 1_000.0
    wall_s = 1_700_000_000

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return self.wall_s * 10**9


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=4) as opened:
        yield opened


@pytest.fixture
def coordination(datastore: Datastore) -> Coordination:
    return Coordination(datastore.state)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups whose workers were told to look."""
    groups: list[str] = []
    monkeypatch.setattr(module, "notify_workers", lambda _state, group: groups.append(group))
    return groups


def joins(datastore: Datastore, coordination: Coordination, name: str = "a") -> GroupMember:
    return GroupMember(
        datastore,
        coordination,
        GROUP,
        name,
        LEASE_S,
        column="BASE",
        function="app:bill",
        log=logging.getLogger("cellfeed.test"),
    )


@pytest.fixture
def member(datastore: Datastore, coordination: Coordination, told: list[str]) -> GroupMember:
    del told
    return joins(datastore, coordination)


def looks(member: GroupMember, now_s: float) -> Session:
    session = member.due_session(now_s)
    assert session is not None
    member.begin_look(session, now_s)
    return session


def test_the_assignment_is_looked_at_several_times_in_a_lease(member: GroupMember) -> None:
    looks(member, 100.0)
    assert member.due_session(100.0 + PART_S - 1) is None
    assert member.due_session(100.0 + PART_S) is not None


def test_a_member_looks_at_once_in_a_new_session(
    member: GroupMember, coordination: Coordination
) -> None:
    first = looks(member, 100.0)
    coordination.leave(first)
    member.membership.renew()
    second = member.due_session(101.0)
    assert second is not None
    assert second.epoch != first.epoch


def test_a_poke_brings_the_next_look_forward_and_a_poke_of_another_group_does_not(
    member: GroupMember,
) -> None:
    looks(member, 100.0)
    member.hear([poke_of("another"), b""])
    assert member.due_session(100.0 + LOOK_SOON_S) is None
    member.hear([poke_of("another"), poke_of(GROUP)])
    assert member.due_session(100.0 + LOOK_SOON_S / 2) is None
    assert member.due_session(100.0 + LOOK_SOON_S) is not None
    member.look_soon(PART_S * 2)  # does not put off an earlier look
    assert member.due_session(100.0 + LOOK_SOON_S) is not None


def test_a_failed_look_is_repeated_soon_and_within_a_part_of_the_lease(
    member: GroupMember,
) -> None:
    looks(member, 100.0)
    member.look_again(0.2)
    assert member.due_session(100.1) is None
    assert member.due_session(100.2) is not None
    member.look_again(LEASE_S)
    assert member.due_session(100.0 + PART_S - 1) is None
    assert member.due_session(100.0 + PART_S) is not None


def test_an_operators_request_is_seen_within_a_second_or_at_a_poke(
    datastore: Datastore, member: GroupMember, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cellfeed.test")
    control = Control(datastore.state, GROUP)
    assert not member.is_paused(100.0)
    looks(member, 100.0)
    control.pause(BY)
    assert not member.is_paused(100.0 + CONTROL_LOOK_S / 2)
    assert member.is_paused(100.0 + CONTROL_LOOK_S)
    control.resume(BY)
    assert member.is_paused(100.0 + CONTROL_LOOK_S * 1.5)
    member.hear([poke_of(GROUP)])
    assert not member.is_paused(100.0 + CONTROL_LOOK_S * 1.5)
    assert member.due_session(100.0) is not None  # it begins again the moment that it may
    control.pause(BY)
    assert member.is_paused(200.0)
    assert member.is_paused(300.0)
    said = [message for message in caplog.messages if "waits" in message or "resumes" in message]
    assert [message.split()[1].rstrip(":") for message in said] == ["waits", "resumes", "waits"]


def test_a_member_whose_name_another_process_has_taken_ends(
    member: GroupMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StaleWriter("another process is a")
    monkeypatch.setattr(member.membership, "superseded", error)
    with pytest.raises(StaleWriter, match="another process is a"):
        member.is_paused(100.0)


def test_the_leader_divides_and_pokes_the_members_and_a_newcomer_pokes_the_leader(
    datastore: Datastore, coordination: Coordination, told: list[str]
) -> None:
    leader = joins(datastore, coordination, "a")
    assert leader.assigned(looks(leader, 0.0), 4) == {0, 1, 2, 3}
    assert told == [GROUP]
    assert leader.assigned(looks(leader, 200.0), 4) == {0, 1, 2, 3}
    assert told == [GROUP], "nothing changed"
    newcomer = joins(datastore, coordination, "b")
    session = looks(newcomer, 0.0)
    assert newcomer.assigned(session, 4) == set()
    assert told == [GROUP] * 2
    assert newcomer.assigned(session, 4) == set()
    assert told == [GROUP] * 2, "once is enough"
    assert len(leader.assigned(looks(leader, 400.0), 4)) == 2
    assert len(newcomer.assigned(session, 4)) == 2
    assert told == [GROUP] * 3


def test_claims_whose_giving_back_failed_are_given_back_later_and_once(
    datastore: Datastore, coordination: Coordination, told: list[str]
) -> None:
    member = joins(datastore, coordination)
    claims = coordination.claim(member.membership.session, "trips", [0, 1])
    member.give_back()
    assert told == []
    member.will_give_back([claims[0]])
    member.will_give_back([claims[1]])
    coordination.fails = "release"
    with pytest.raises(Unavailable):
        member.give_back()
    assert set(coordination.owners(GROUP, "trips")) == {0, 1}
    member.give_back()
    assert coordination.owners(GROUP, "trips") == {}
    assert told == [GROUP]
    member.give_back()
    assert coordination.released == [[0, 1]], "once"


def test_a_member_that_leaves_gives_back_first_and_tries_again_while_work_is_under_way(
    datastore: Datastore, coordination: Coordination, told: list[str]
) -> None:
    member = joins(datastore, coordination)
    member.report(None, {0: Progress()}, {})
    member.will_give_back(coordination.claim(member.membership.session, "trips", [0]).values())
    coordination.fails = "leave"
    assert not member.leave(is_idle=False)
    assert coordination.owners(GROUP, "trips") == {}
    assert coordination.members(GROUP) == ["a"]
    assert member.leave(is_idle=False)
    assert coordination.members(GROUP) == []
    assert datastore.state.list("triggers/rides/workers/") == []
    assert told[-1] == GROUP
    other = joins(datastore, coordination, "b")
    coordination.fails = "leave"
    assert other.leave(is_idle=True), "it does not wait for a coordination that is away"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress_reporter, "time", made)
    return made


def record(datastore: Datastore) -> WorkerRecord:
    found = datastore.state.get("triggers/rides/workers/a")
    assert found is not None
    return worker_record(found)


def test_a_report_is_written_when_something_changed_or_it_is_old(
    datastore: Datastore, member: GroupMember, clock: Clock
) -> None:
    def versions() -> int:
        found = datastore.state.get("triggers/rides/workers/a")
        assert found is not None
        return found.version

    progress = {0: Progress(location=5, because="came to 4"), 1: Progress()}
    assert member.report_is_due()
    member.report(None, progress, {})
    first = versions()
    assert not member.report_is_due()
    member.report("not due", progress, {})
    assert record(datastore).stands_still == ""
    clock.now_s += REPORT_EVERY_S
    assert member.report_is_due()
    member.report(None, progress, {})
    assert versions() == first
    clock.now_s += REPORT_AGAIN_S
    member.report(None, progress, {})
    assert versions() > first
    clock.now_s += REPORT_EVERY_S
    progress[0] = Progress(location=6, because="came to 5")
    member.report("the store is away", progress, {})
    found = record(datastore)
    assert found.stands_still == "the store is away"
    assert (found.shards[0].location, found.shards[1].location) == (6, 0)
    assert (found.reason(0), found.reason(1)) == ("came to 5", NOT_STARTED)


def test_a_long_report_is_written_less_often(
    datastore: Datastore, member: GroupMember, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    del datastore
    monkeypatch.setattr(progress_reporter, "REPORT_BYTES_PER_S", 100)
    member.report(None, {shard: Progress(because=f"reason {shard}") for shard in range(50)}, {})
    clock.now_s += 5 * REPORT_EVERY_S
    assert not member.report_is_due()


def test_an_operators_request_is_the_first_reason(
    datastore: Datastore, member: GroupMember
) -> None:
    Control(datastore.state, GROUP).pause(BY)
    assert member.is_paused(100.0)
    member.report("the store is away", {}, {})
    assert record(datastore).stands_still.startswith("paused by somebody@here")


def test_a_cell_that_runs_since_the_last_report_is_named_until_it_ends(
    datastore: Datastore, member: GroupMember, clock: Clock
) -> None:
    def reasons(running: int | None, because: str = "came to 4") -> str:
        clock.now_s += REPORT_AGAIN_S + REPORT_EVERY_S
        clock.wall_s += 100
        member.report(None, {0: Progress(location=5, because=because, running=running)}, {})
        return record(datastore).reason(0)

    assert reasons(5) == "came to 4"
    first = reasons(5)
    assert first.startswith("cell 5 has been running since ")
    assert reasons(5) == first
    assert reasons(5, "retries").startswith("retries; cell 5 has been running since ")
    assert reasons(6) == "came to 4"
    assert reasons(6).startswith("cell 6 has been running since ")
    assert reasons(None) == "came to 4"


def test_only_records_of_members_dead_for_long_are_forgotten(
    datastore: Datastore, coordination: Coordination, told: list[str]
) -> None:
    del told
    long_ago_us = datastore.state.now_us() - int(FORGOTTEN_AFTER_S * 1e6) - 1
    old, new = (
        msgspec.msgpack.encode(WorkerRecord(at_us, "", [], {}))
        for at_us in (long_ago_us, long_ago_us + 60_000_000)
    )
    datastore.state.commit(
        {
            "triggers/rides/workers/dead": old,
            "triggers/rides/workers/died": new,
            "triggers/rides/workers/b": old,  # a member that has not reported for long
            "triggers/others/workers/dead": old,
        }
    )
    leader = joins(datastore, coordination, "a")
    joins(datastore, coordination, "b")
    leader.assigned(looks(leader, 0.0), 4)
    assert {entry.key for entry in datastore.state.list("triggers/")} == {
        "triggers/rides/workers/died",
        "triggers/rides/workers/b",
        "triggers/others/workers/dead",
    }
