"""Fetch by topic id: a client that may describe a topic may not read it, and one that may do
neither learns nothing of it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis import api_01_fetch, fetch_reads
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.fetch.kept_fetches import KeptFetches
from cellfeed.bridge.gateway.request_tallies import RequestTallies
from cellfeed.bridge.gateway.unsent import Unsent
from cellfeed.bridge.gateway.wire.fetch_request import fetch_of
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.security.access import Security
from cellfeed.store.security.quotas import Quotas
from cellfeed.store.security.rights import Acl
from tests.support.awaiting import awaited
from tests.support.gateway_context import Heads

TOPIC = SimpleNamespace(
    name="trips", latest=False, compression=None, view=SimpleNamespace(column=None)
)
TOPIC_ID = UUID(int=7)
RULES = [
    Acl("User:reader", "topic", "trips", "read"),
    Acl("User:looker", "topic", "trips", "describe"),
    Acl("User:other", "topic", "fares", "read"),
]


class Gateway:
    """The parts of its context that Fetch uses before it reads."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(shards=4)
        self.heads = Heads({shard: Head(0, 10, 10, 0, 0) for shard in range(4)})
        self.kept_fetches = KeptFetches(cast("Any", self.heads))
        self.newest = SimpleNamespace(reads=None)
        self.unsent = Unsent()
        self.quotas = Quotas()
        self.tallies = RequestTallies()
        self.topics = SimpleNamespace(named={"trips": TOPIC}.get, datastore="trips")
        self.security = Security({}, frozenset(RULES), b"")

    async def topics_identified(self, topic_ids: Any) -> list[Any]:
        return [TOPIC if topic_id == TOPIC_ID else None for topic_id in topic_ids]

    may = GatewayContext.may
    topic_refused = GatewayContext.topic_refused


@pytest.mark.parametrize(
    ("principal", "topic", "error"),
    [
        ("User:reader", TOPIC, ErrorCode.none),
        ("User:looker", TOPIC, ErrorCode.topic_authorization_failed),
        ("User:other", None, ErrorCode.none),
        ("User:nobody", None, ErrorCode.none),
    ],
)
def test_a_topic_is_read_by_its_id_with_only_the_right_to_read(
    monkeypatch: pytest.MonkeyPatch, principal: str, topic: Any, error: ErrorCode
) -> None:
    """A topic that may not even be described is one that is not there."""
    asked: list[Any] = []

    async def read(_context: Any, wanted: Any, *_more: Any) -> tuple[list[Any], int, bool]:
        asked.extend(wanted)
        return (
            [SimpleNamespace(error=ErrorCode.unknown_server_error, batches=()) for _ in wanted],
            0,
            True,
        )

    monkeypatch.setattr(fetch_reads, "read", read)
    monkeypatch.setattr(api_01_fetch, "response_of", lambda *_about: [])
    partition = SimpleNamespace(
        partition=1, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    request = SimpleNamespace(
        topics=[SimpleNamespace(topic_id=TOPIC_ID, partitions=[partition])],
        max_wait=timedelta(0),
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        isolation_level=0,
    )
    peer = Peer("client", "127.0.0.1", 13, "default", principal, 1, 0.0)
    awaited(
        api_01_fetch.handle(
            cast("GatewayContext", Gateway()),
            fetch_of(request, 13),
            cast("RequestHead", SimpleNamespace(version=13)),
            peer,
        )
    )
    [wanted] = asked
    assert (wanted.topic, wanted[5]) == (topic, error)
