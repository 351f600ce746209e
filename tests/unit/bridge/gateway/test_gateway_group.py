"""The consumer group's state machine, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.groups.group import Group
from cellfeed.bridge.gateway.groups.members import JoinRequest
from cellfeed.bridge.gateway.groups.rebalances import State

RANGE = (("range", b"topics"), ("roundrobin", b"topics"))


class Answers:
    """Collects replies by name."""

    def __init__(self) -> None:
        self.got: dict[str, Mapping[str, Any]] = {}

    def to(self, name: str) -> Any:
        def reply(values: Mapping[str, Any]) -> None:
            assert name not in self.got, f"{name} was answered twice"
            self.got[name] = values

        return reply


def request(
    member_id: str = "",
    *,
    instance_id: str | None = None,
    protocols: Any = RANGE,
    session_s: float = 10,
    version: int = 9,
    kind: str = "consumer",
) -> Any:
    return JoinRequest(
        member_id, instance_id, "client", "127.0.0.1", session_s, 60.0, kind, protocols, version
    )


def join(group: Group, now: float = 0, **options: Any) -> tuple[str, Answers]:
    """Joins as a dynamic member does: first without an id, then with the one that was given out."""
    first = Answers()
    group.join(request(**options), first.to("id"), now)
    member_id = first.got["id"]["member_id"]
    assert first.got["id"]["error_code"] is ErrorCode.member_id_required
    answers = Answers()
    group.join(request(member_id, **options), answers.to("join"), now)
    return member_id, answers


def stable_pair(now: float = 0) -> tuple[Group, str, str]:
    group = Group("g", initial_delay_s=0)
    leader, first = join(group, now)
    assert first.got["join"]["leader"] == leader
    follower, second = join(group, now)
    again = Answers()
    group.join(request(leader), again.to("leader"), now)
    assert second.got["join"]["generation_id"] == again.got["leader"]["generation_id"] == 2
    synced = Answers()
    group.sync(follower, None, 2, {}, synced.to("follower"), now)
    assert not synced.got
    group.sync(leader, None, 2, {leader: b"L", follower: b"F"}, synced.to("leader"), now)
    assert synced.got["follower"]["assignment"] == b"F"
    assert synced.got["leader"]["assignment"] == b"L"
    assert group.state is State.STABLE
    return group, leader, follower


def test_only_the_leader_gets_the_list_of_members() -> None:
    group, leader, follower = stable_pair()
    answers = Answers()
    group.join(
        request(follower, protocols=(("range", b"other"), ("roundrobin", b"topics"))),
        answers.to("follower"),
        0,
    )
    assert group.state is State.PREPARING
    group.join(request(leader), answers.to("leader"), 0)
    assert [member["member_id"] for member in answers.got["leader"]["members"]] == [
        leader,
        follower,
    ]
    assert answers.got["follower"]["members"] == []
    assert answers.got["follower"]["leader"] == leader


def state_of(group: Group) -> State:
    """Its state now: mypy keeps the type that an earlier assertion gave the attribute itself."""
    return group.state


def test_a_follower_that_joins_unchanged_gets_the_generation_at_once() -> None:
    group, leader, follower = stable_pair()
    answers = Answers()
    group.join(request(follower), answers.to("follower"), 0)
    assert answers.got["follower"]["generation_id"] == 2
    assert group.state is State.STABLE
    group.join(request(leader), answers.to("leader"), 0)
    assert state_of(group) is State.PREPARING


def test_heartbeats_report_a_rebalance_and_keep_the_session() -> None:
    group, leader, follower = stable_pair()
    assert group.heartbeat(follower, None, 2, 5) is ErrorCode.none
    assert group.heartbeat(follower, None, 1, 5) is ErrorCode.illegal_generation
    assert group.heartbeat("nobody", None, 2, 5) is ErrorCode.unknown_member_id
    join(group, 5)
    assert group.heartbeat(follower, None, 2, 6) is ErrorCode.rebalance_in_progress
    assert group.heartbeat(leader, None, 2, 6) is ErrorCode.rebalance_in_progress


def test_a_silent_member_is_removed_and_the_rest_joins_again() -> None:
    group, leader, follower = stable_pair()
    group.heartbeat(leader, None, 2, 8)
    assert group.next_deadline() == 10
    group.tick(10)
    assert follower not in group.members
    assert group.state is State.PREPARING
    answers = Answers()
    group.join(request(leader), answers.to("leader"), 11)
    assert answers.got["leader"]["generation_id"] == 3
    assert state_of(group) is State.COMPLETING


def test_a_member_parked_in_join_never_expires() -> None:
    group, leader, _ = stable_pair()
    answers = Answers()
    group.join(request(leader), answers.to("leader"), 9)
    group.tick(
        10
    )  # the follower's session ends; the parked leader's would have as well, and does not
    assert answers.got["leader"]["error_code"] is ErrorCode.none
    assert list(group.members) == [leader]


def test_members_that_do_not_rejoin_in_time_are_left_behind() -> None:
    group, leader, follower = stable_pair()
    answers = Answers()
    group.join(request(leader), answers.to("leader"), 0)
    for second in range(1, 60, 5):
        group.heartbeat(follower, None, 2, second)
        group.tick(second)
    assert not answers.got
    group.tick(60)
    assert answers.got["leader"]["generation_id"] == 3
    assert follower not in group.members


def test_a_leader_that_never_syncs_is_removed() -> None:
    group = Group("g", initial_delay_s=0)
    leader, _ = join(group, session_s=1000)
    group.tick(60)
    assert leader not in group.members
    assert group.state is State.EMPTY


def test_a_new_group_waits_for_more_members() -> None:
    group = Group("g", initial_delay_s=3)
    _, first = join(group, 0)
    _, second = join(group, 2)
    group.tick(4.9)
    assert not first.got
    assert group.next_deadline() == 5
    group.tick(5)
    assert first.got["join"]["generation_id"] == second.got["join"]["generation_id"] == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"session_s": 0.1}, ErrorCode.invalid_session_timeout),
        ({"session_s": 10_000}, ErrorCode.invalid_session_timeout),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": (("sticky", b""),)}, ErrorCode.inconsistent_group_protocol),
        ({"kind": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"member_id": "nobody"}, ErrorCode.unknown_member_id),
        ({"member_id": "x", "instance_id": "unknown"}, ErrorCode.unknown_member_id),
    ],
)
def test_joins_that_cannot_be_are_refused(options: dict[str, Any], error: ErrorCode) -> None:
    group, _, _ = stable_pair()
    answers = Answers()
    group.join(request(options.pop("member_id", ""), **options), answers.to("join"), 0)
    assert answers.got["join"]["error_code"] is error
    assert group.state is State.STABLE


def test_a_full_group_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellfeed.bridge.gateway.groups.group.GROUP_MEMBERS_MAX", 2)
    group, _, _ = stable_pair()
    answers = Answers()
    group.join(request(), answers.to("join"), 0)
    assert answers.got["join"]["error_code"] is ErrorCode.group_max_size_reached


def test_a_restarted_static_member_keeps_its_place_and_fences_its_old_self() -> None:
    group = Group("g", initial_delay_s=0)
    answers = Answers()
    group.join(request(instance_id="i"), answers.to("first"), 0)
    old = answers.got["first"]["member_id"]
    group.sync(old, "i", 1, {old: b"mine"}, answers.to("sync"), 0)
    group.join(request(instance_id="i"), answers.to("second"), 1)
    new = answers.got["second"]["member_id"]
    assert new != old
    assert answers.got["second"]["generation_id"] == 1
    assert answers.got["second"]["skip_assignment"]
    assert group.heartbeat(old, "i", 1, 1) is ErrorCode.fenced_instance_id
    assert group.heartbeat(new, "i", 1, 1) is ErrorCode.none
    group.sync(new, "i", 1, {}, answers.to("resync"), 1)
    assert answers.got["resync"]["assignment"] == b"mine"
    group.join(request(instance_id="i", version=8), answers.to("old client"), 2)
    assert answers.got["old client"]["leader"] == new


def test_a_static_members_parked_request_is_fenced_by_its_successor() -> None:
    group, leader, follower = stable_pair()
    answers = Answers()
    group.join(request(instance_id="i"), answers.to("parked"), 0)
    group.join(request(instance_id="i"), answers.to("successor"), 0)
    assert answers.got["parked"]["error_code"] is ErrorCode.fenced_instance_id
    for member in (leader, follower):
        group.join(request(member), answers.to(member), 0)
    assert answers.got["successor"]["error_code"] is ErrorCode.none


def test_leaving_starts_a_rebalance_and_the_last_one_empties_the_group() -> None:
    group, leader, follower = stable_pair()
    assert group.leave("nobody", None, 0) is ErrorCode.unknown_member_id
    assert group.leave("", "nobody", 0) is ErrorCode.unknown_member_id
    assert group.leave(follower, None, 0) is ErrorCode.none
    assert group.state is State.PREPARING
    assert group.leave(leader, None, 0) is ErrorCode.none
    assert state_of(group) is State.EMPTY
    assert group.dead


def test_an_id_that_was_given_out_lapses() -> None:
    group, leader, follower = stable_pair()
    answers = Answers()
    group.join(request(), answers.to("id"), 0)
    member_id = answers.got["id"]["member_id"]
    for member in (leader, follower):
        group.heartbeat(member, None, 2, 9)
    group.tick(10)
    group.join(request(member_id), answers.to("late"), 10)
    assert answers.got["late"]["error_code"] is ErrorCode.unknown_member_id


def test_commits_are_allowed_by_members_of_this_generation_or_by_anyone_when_empty() -> None:
    group, leader, _ = stable_pair()
    assert group.commit_error(leader, None, 2, 0) is None
    assert group.commit_error(leader, None, 1, 0) is ErrorCode.illegal_generation
    assert group.commit_error("nobody", None, 2, 0) is ErrorCode.unknown_member_id
    assert group.commit_error("", None, -1, 0) is ErrorCode.unknown_member_id
    answers = Answers()
    group.join(request(leader), answers.to("leader"), 0)
    assert group.commit_error(leader, None, 2, 0) is None
    group.tick(60)
    assert group.state is State.COMPLETING
    assert group.commit_error(leader, None, 3, 60) is ErrorCode.rebalance_in_progress
    assert Group("empty").commit_error("", None, -1, 0) is None


def test_a_member_without_a_share_gets_a_valid_empty_assignment() -> None:
    group, leader, follower = stable_pair()
    answers = Answers()
    group.join(request(leader), answers.to("a"), 0)
    group.join(request(follower), answers.to("b"), 0)
    group.sync(follower, None, 3, {}, answers.to("follower"), 0)
    group.sync(leader, None, 3, {leader: b"all"}, answers.to("leader"), 0)
    assert answers.got["follower"]["assignment"] == b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"


class GroupMachine(RuleBasedStateMachine):
    """Members that join, sync, leave, fall silent and come back, in any order: nobody waits for
    ever, and everybody agrees."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.group = Group("g", initial_delay_s=0)
        self.ids: list[str] = []
        self.waiting: dict[int, str] = {}
        self.generations: list[int] = [0]
        self.count = 0

    def reply(self, kind: str) -> Any:
        self.count += 1
        number = self.count
        self.waiting[number] = kind

        def answer(values: Mapping[str, Any]) -> None:
            del self.waiting[number]
            if kind == "join" and values["member_id"] and values["member_id"] not in self.ids:
                self.ids.append(values["member_id"])

        return answer

    @rule()
    def newcomer(self) -> None:
        self.group.join(request(), self.reply("join"), self.now)

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), metadata=st.sampled_from([b"a", b"b"]))
    def rejoin(self, data: st.DataObject, metadata: bytes) -> None:
        self.group.join(
            request(data.draw(st.sampled_from(self.ids)), protocols=(("range", metadata),)),
            self.reply("join"),
            self.now,
        )

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(self.ids))
        self.group.sync(
            member_id, None, self.group.generation, {member_id: b"x"}, self.reply("sync"), self.now
        )

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.group.leave(data.draw(st.sampled_from(self.ids)), None, self.now)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.group.heartbeat(
            data.draw(st.sampled_from(self.ids)), None, self.group.generation, self.now
        )

    @rule()
    def time_passes(self) -> None:
        deadline = self.group.next_deadline()
        if deadline is not None:
            self.now = max(self.now, deadline)
            self.group.tick(self.now)

    @invariant()
    def consistent(self) -> None:
        group = self.group
        self.generations.append(group.generation)
        assert self.generations[-1] >= self.generations[-2]
        assert (group.state is State.EMPTY) == (not group.members)
        if group.state in (State.COMPLETING, State.STABLE):
            assert group.leader in group.members
            assert not any(member.parked_join for member in group.members.values())
        if group.state is State.STABLE:
            assert not any(member.parked_sync for member in group.members.values())
        parked = sum(
            (member.parked_join is not None) + (member.parked_sync is not None)
            for member in group.members.values()
        )
        assert parked == len(self.waiting), "somebody waits whom the group has forgotten"
        if self.waiting:
            assert group.next_deadline() is not None, "nothing would ever wake those who wait"


TestGroupMachine = GroupMachine.TestCase


def test_no_generation_comes_twice_in_a_group_that_was_empty() -> None:
    group, leader, follower = stable_pair()
    for member in (leader, follower):
        group.leave(member, None, 0)
    assert group.generation > 2, "a late commit of generation 2 is refused"
    before = group.generation
    join(group)
    assert group.generation > before


def test_a_heartbeat_while_the_leader_assigns_is_in_order() -> None:
    group, leader, follower = stable_pair()
    _, third = join(group)
    for member in (leader, follower):
        group.join(request(member), Answers().to(member), 0)
    assert third.got
    assert group.state is State.COMPLETING
    assert group.heartbeat(follower, None, 3, 1) is ErrorCode.none


@pytest.mark.parametrize("member_id", ["", "somebody"])
def test_an_instance_that_names_another_member_is_fenced(member_id: str) -> None:
    group = Group("g", initial_delay_s=0)
    group.join(request(instance_id="i"), Answers().to("first"), 0)
    assert group.heartbeat(member_id, "i", 1, 0) is ErrorCode.fenced_instance_id
    assert group.commit_error(member_id, "i", 1, 0) is ErrorCode.fenced_instance_id


def test_a_rebalance_waits_as_long_as_its_most_patient_member_and_the_leader_no_longer() -> None:
    group, leader, follower = stable_pair()
    patient = group.members[leader]
    patient.request = patient.request._replace(rebalance_timeout_s=90.0, session_timeout_s=1000)
    patient.deadline_s = 1000
    _, third = join(group, 5)
    group.join(group.members[leader].request._replace(member_id=leader), Answers().to("l"), 6)
    for now in (14, 23, 32, 41, 50, 59, 68, 77, 86, 94):
        group.heartbeat(follower, None, 2, now)
        group.tick(now)
        assert group.state is State.PREPARING
    group.heartbeat(follower, None, 2, 95)
    group.tick(95)
    assert follower not in group.members
    assert third.got["join"]["generation_id"] == 3
    assert group.state is State.COMPLETING
    group.sync(next(m for m in group.members if m != leader), None, 3, {}, Answers().to("s"), 96)
    assert group.next_deadline() == 95 + 90, "a leader that never syncs is waited for no longer"


def test_the_protocol_that_most_members_like_best_is_chosen() -> None:
    group = Group("g", initial_delay_s=0)
    turned = (RANGE[1], RANGE[0])
    answers = Answers()
    for name, protocols in (("a", turned), ("b", RANGE), ("c", turned)):
        group.join(request(instance_id=name, protocols=protocols), answers.to(name), 0)
    for member in list(group.members.values()):
        if member.parked_join is None:
            group.join(member.request._replace(member_id=member.member_id), Answers().to("x"), 0)
    assert group.protocol == "roundrobin"


def test_a_restarted_follower_of_an_old_client_learns_the_leader() -> None:
    group = Group("g", initial_delay_s=0)
    answers = Answers()
    group.join(request(instance_id="leads", version=8), answers.to("leads"), 0)
    leader = answers.got["leads"]["member_id"]
    group.join(request(instance_id="follows", version=8), answers.to("follows"), 0)
    group.join(request(leader, instance_id="leads", version=8), answers.to("again"), 0)
    follower = answers.got["follows"]["member_id"]
    group.sync(follower, "follows", 2, {}, answers.to("f"), 0)
    group.sync(leader, "leads", 2, {follower: b"F"}, answers.to("l"), 0)
    group.join(request(instance_id="follows", version=8), answers.to("restarted"), 1)
    assert answers.got["restarted"]["leader"] == leader
