"""OffsetFetch shows offsets of topics that the peer may see, and of no others; and a rule of one
kind is none of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.gateway.apis import api_09_offset_fetch
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.security.access import Security
from cellfeed.store.security.rights import Acl
from tests.support.awaiting import awaited

OFFSETS = {("open", 0): CommittedOffset(5), ("secret", 0): CommittedOffset(7)}
RULES = [
    Acl("User:a", "group", "g", "read"),
    Acl("User:a", "topic", "open", "read"),
    Acl("User:b", "topic", "g", "read"),
]


class Gateway:
    """The parts of its context that OffsetFetch uses."""

    def __init__(self) -> None:
        self.security = Security({}, frozenset(RULES), b"")
        self.cluster = SimpleNamespace(group_error=lambda _group: None, claim=lambda _group: None)
        self.groups = SimpleNamespace(offsets_lock=lambda _group: asyncio.Lock())
        self.offsets = SimpleNamespace(
            fetch_offsets=lambda _group: OFFSETS, commit_offsets=lambda *_about, **_claims: None
        )

    async def in_coordination(self, call: Any, *arguments: Any, **named: Any) -> Any:
        return call(*arguments, **named)

    def may(self, peer: Peer, kind: Any, name: str, operation: Any) -> bool:
        return self.security.may(peer.principal, kind, name, operation)


def fetch(
    principal: str, topics: Sequence[str] | None, gateway: Gateway | None = None
) -> tuple[ErrorCode, dict[str, tuple[int, ErrorCode]]]:
    """The error of the group, and by topic the offset of partition 0 with its error."""
    asked = (
        None
        if topics is None
        else [SimpleNamespace(name=name, partition_indexes=[0]) for name in topics]
    )
    request = SimpleNamespace(group_id="g", topics=asked)
    peer = Peer("client", "127.0.0.1", 6, "default", principal, 1, 0.0)
    head = cast("RequestHead", SimpleNamespace(version=6))
    answer = awaited(
        api_09_offset_fetch.handle(
            cast("GatewayContext", gateway or Gateway()), request, head, peer
        )
    )
    return answer["error_code"], {
        each["name"]: (
            each["partitions"][0]["committed_offset"],
            each["partitions"][0]["error_code"],
        )
        for each in answer["topics"]
    }


def test_offsets_of_all_topics_are_those_of_topics_that_may_be_seen() -> None:
    assert fetch("User:a", None) == (ErrorCode.none, {"open": (5, ErrorCode.none)})


def test_a_topic_that_may_not_be_seen_is_refused_by_name() -> None:
    assert fetch("User:a", ["open", "secret"]) == (
        ErrorCode.none,
        {"open": (5, ErrorCode.none), "secret": (-1, ErrorCode.topic_authorization_failed)},
    )


@pytest.mark.parametrize("topics", [None, ["open"]])
def test_a_topics_rule_counts_for_no_group_of_that_name(topics: Sequence[str] | None) -> None:
    error, told = fetch("User:b", topics)
    assert error is ErrorCode.group_authorization_failed
    assert all(offset == -1 for offset, _ in told.values())


def test_the_rules_of_one_user_do_not_apply_to_another() -> None:
    assert fetch("User:c", ["open"])[0] is ErrorCode.group_authorization_failed


def test_a_group_that_another_gateway_took_while_its_offsets_were_waited_for_is_refused() -> None:
    """A commit of the group holds its lock; the slot goes to another gateway meanwhile."""
    gateway, claims = Gateway(), {"g": "the claim"}

    @asynccontextmanager
    async def behind_a_commit(group: str) -> AsyncIterator[None]:
        del claims[group]
        yield

    gateway.groups = SimpleNamespace(offsets_lock=behind_a_commit)
    gateway.cluster = SimpleNamespace(
        group_error=lambda group: None if group in claims else ErrorCode.not_coordinator,
        claim=lambda group: claims[group],
    )
    error, told = fetch("User:a", ["open"], gateway)
    assert error is ErrorCode.not_coordinator
    assert told == {"open": (-1, ErrorCode.not_coordinator)}
