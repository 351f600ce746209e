"""The members of a consumer group: their join requests, their ids, and the protocols that all
support."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

Reply = Callable[[Mapping[str, Any]], None]
"""Takes the fields of the response."""


class JoinRequest(NamedTuple):
    """A member's request to join. Time-outs in seconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    version: int


@dataclass
class Member:
    """A member; ``parked_join`` and ``parked_sync`` are requests of its that wait for an answer."""

    member_id: str
    request: JoinRequest
    deadline_s: float
    assignment: bytes = b""
    parked_join: Reply | None = None
    parked_sync: Reply | None = None

    @property
    def parked(self) -> bool:
        return self.parked_join is not None or self.parked_sync is not None

    def metadata(self, protocol: str) -> bytes:
        return dict(self.request.protocols).get(protocol, b"")


def static_member(members: Mapping[str, Member], instance_id: str | None) -> Member | None:
    """The static member of that instance id."""
    if instance_id is None:
        return None
    return next(
        (member for member in members.values() if member.request.instance_id == instance_id),
        None,
    )


def identity_error(
    members: Mapping[str, Member], member_id: str, instance_id: str | None
) -> ErrorCode | None:
    """Why a request of that member is refused; None where it is the member that it says."""
    if instance_id is not None:
        static = static_member(members, instance_id)
        if static is None:
            return ErrorCode.unknown_member_id
        if static.member_id != member_id:
            return ErrorCode.fenced_instance_id
    return None if member_id in members else ErrorCode.unknown_member_id


def common_protocols(members: Iterable[Member]) -> set[str]:
    """The protocols that every member supports."""
    return set.intersection(*({name for name, _ in member.request.protocols} for member in members))


def vote(members: Collection[Member]) -> str:
    """The protocol that most members like best among those that all support."""
    common = common_protocols(members)
    votes = [
        next(name for name, _ in member.request.protocols if name in common) for member in members
    ]
    return max(sorted(common), key=votes.count)


def metadata_of_all(members: Iterable[Member], protocol: str) -> Sequence[Mapping[str, Any]]:
    """The members' metadata, by which the leader assigns partitions."""
    return [
        {
            "member_id": each.member_id,
            "group_instance_id": each.request.instance_id,
            "metadata": each.metadata(protocol),
        }
        for each in members
    ]


def join_refused(error: ErrorCode, member_id: str) -> dict[str, Any]:
    """The fields of a JoinGroup response that refuses."""
    return {
        "error_code": error,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None,
        "leader": "",
        "member_id": member_id,
        "members": [],
    }
