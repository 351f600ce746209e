"""OffsetCommit: an offset that is saved carries this gateway's claim, and only of topics that the
peer may read. The gateway's parts are values here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset
from cellfeed.bridge.gateway.apis import api_08_offset_commit
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.errors import StaleWriter, StorageUnavailable
from tests.support.awaiting import awaited

CLAIM = Claim("__gateways", "__consumer_offsets", 5, "gateway-1", 77)


class Gateway:
    """The parts of its context that OffsetCommit uses. ``refuses`` is raised by the coordination;
    ``forbidden`` are topics that nobody may read."""

    def __init__(self) -> None:
        self.saved: list[tuple[dict[Any, CommittedOffset], Sequence[Claim]]] = []
        self.refuses: Exception | None = None
        self.forbidden: set[str] = set()
        self.generation_error: ErrorCode | None = None
        self.triggers: set[str] = set()
        self.cluster = SimpleNamespace(
            group_error=lambda _group: None,
            claim=lambda _group: CLAIM,
            refuses=lambda group: group in self.triggers,
        )
        self.groups = SimpleNamespace(
            offsets_lock=lambda _group: asyncio.Lock(),
            commit_error=lambda *_about: self.generation_error,
        )
        self.offsets = SimpleNamespace(commit_offsets=self._commit)

    def _commit(
        self, group: str, offsets: Mapping[Any, CommittedOffset], *, claims: Sequence[Claim] = ()
    ) -> None:
        assert group == "g"
        if self.refuses is not None:
            raise self.refuses
        self.saved.append((dict(offsets), claims))

    async def topics_named(self, names: Any) -> list[Any]:
        return [SimpleNamespace(name=name) for name in names]

    async def in_coordination(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def may(self, _peer: Any, kind: str, name: str, operation: str) -> bool:
        assert operation == "read"
        return not (kind == "topic" and name in self.forbidden)

    def partition_error(self, _topic: Any, partition: int) -> ErrorCode:
        return ErrorCode.none if partition < 4 else ErrorCode.unknown_topic_or_partition


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def commit(gateway: Gateway, *places: tuple[str, int, int]) -> list[ErrorCode]:
    """Commits ``(topic, partition, offset)``; the error of each."""
    topics = [
        SimpleNamespace(
            name=name,
            partitions=[
                SimpleNamespace(
                    partition_index=partition, committed_offset=offset, committed_metadata=None
                )
            ],
        )
        for name, partition, offset in places
    ]
    request = SimpleNamespace(group_id="g", member_id="", generation_id=-1, topics=topics)
    peer = Peer("client", "127.0.0.1", 8, "default", "User:a", 1, 0.0)
    answer = awaited(
        api_08_offset_commit.handle(
            cast("GatewayContext", gateway), request, cast("RequestHead", None), peer
        )
    )
    return [each["error_code"] for topic in answer["topics"] for each in topic["partitions"]]


def test_a_commit_carries_the_claim_of_the_gateway_on_the_group(gateway: Gateway) -> None:
    assert commit(gateway, ("trips", 1, 7)) == [ErrorCode.none]
    [(offsets, claims)] = gateway.saved
    assert {key: each.offset for key, each in offsets.items()} == {("trips", 1): 7}
    assert list(claims) == [CLAIM]


def test_consumers_move_no_offset_of_a_trigger(gateway: Gateway) -> None:
    gateway.triggers = {"g"}
    assert commit(gateway, ("trips", 1, 7)) == [ErrorCode.invalid_group_id]
    assert gateway.saved == []


@pytest.mark.parametrize(
    ("refuses", "told"),
    [
        (StaleWriter("another gateway has the slot"), ErrorCode.not_coordinator),
        (StorageUnavailable("away"), ErrorCode.coordinator_not_available),
    ],
)
def test_a_commit_that_the_coordination_refuses_is_not_acknowledged(
    gateway: Gateway, refuses: Exception, told: ErrorCode
) -> None:
    gateway.refuses = refuses
    assert commit(gateway, ("trips", 1, 7), ("trips", 2, 8)) == [told, told]


def test_unreadable_topics_and_missing_partitions_of_a_commit_get_errors_of_their_own(
    gateway: Gateway,
) -> None:
    gateway.forbidden = {"secret"}
    assert commit(
        gateway, ("secret", 1, 7), ("trips", 9, 7), ("trips", 1, -2), ("trips", 2, 8)
    ) == [
        ErrorCode.topic_authorization_failed,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.offset_out_of_range,
        ErrorCode.none,
    ]
    [(offsets, _)] = gateway.saved
    assert list(offsets) == [("trips", 2)]


def test_an_old_generation_saves_nothing(gateway: Gateway) -> None:
    gateway.generation_error = ErrorCode.illegal_generation
    assert commit(gateway, ("trips", 1, 7)) == [ErrorCode.illegal_generation]
    assert gateway.saved == []
