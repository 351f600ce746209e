"""A gateway's context for API handlers, whose parts are values: the store, the coordination and the
other gateways answer as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, TopicPartition
from cellfeed.bridge.gateway.apis import api_01_fetch
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.fetch.kept_fetches import KeptFetches
from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.wire.fetch_request import fetch_of
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.security.access import Security

CLAIM = Claim("__gateways", "__consumer_offsets", 5, "gateway-1", 77)
TOPIC = "trips"
PEER = Peer("client", "127.0.0.1", 1, "default", "ANONYMOUS", 1, 0.0)


class Heads(dict[int, Head]):
    """``fresher``: the result of a look."""

    def __init__(self, heads: Mapping[int, Head]) -> None:
        super().__init__(heads)
        self.fresher: dict[int, Head] = {}
        self.waited_s: list[float] = []

    async def refresh(self, asked_s: float | None = None) -> None:
        self.update(self.fresher)

    def is_read(self) -> None:
        """Nobody needs to know."""

    def watch(self) -> Watch:
        return Watch(self.waited_s)


class Watch:
    """Of heads that never change while somebody waits."""

    def __init__(self, waited_s: list[float]) -> None:
        self._waited_s = waited_s
        self.changed: set[int] = set()

    def follow(self, _shard: int) -> None:
        """Has nothing to follow."""

    unfollow = follow

    def close(self) -> None:
        """Has nothing to end."""

    wake = close

    def take(self) -> set[int]:
        return set()

    async def wait(self, timeout_s: float) -> None:
        self._waited_s.append(timeout_s)
        await asyncio.sleep(min(timeout_s, 1.0))


class Offsets:
    """Offsets of one group; ``calls`` are the changes with their claims, ``raises`` is why none is
    made."""

    def __init__(self) -> None:
        self.held: dict[TopicPartition, CommittedOffset] = {}
        self.calls: list[tuple[str, Any, Sequence[Claim]]] = []
        self.raises: Exception | None = None
        self.groups_table: GroupTable | None = None

    def _note(self, name: str, what: Any, group: str, claims: Sequence[Claim]) -> None:
        assert self.groups_table is not None
        assert self.groups_table.offsets_lock(group).locked(), f"{name} without the group's lock"
        if self.raises is not None:
            raise self.raises
        self.calls.append((name, what, list(claims)))

    def commit_offsets(self, group: str, offsets: Any, *, claims: Sequence[Claim] = ()) -> None:
        self._note("commit", dict(offsets), group, claims)

    def delete_offsets(
        self, group: str, partitions: Any = None, *, claims: Sequence[Claim] = ()
    ) -> None:
        self._note("delete", partitions, group, claims)

    def fetch_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        if self.raises is not None:
            raise self.raises
        return dict(self.held)


class KnownHeads:
    """The context of a gateway that coordinates every group and holds the topic ``trips``.
    ``triggers``: groups that are triggers'."""

    def __init__(self, heads: Mapping[int, Head] | None = None, **engine: Any) -> None:
        self.heads = Heads(heads or {})
        self.offsets = Offsets()
        self.groups = self.offsets.groups_table = GroupTable(0.0)
        self.triggers: set[str] = set()
        self.executor = ThreadPoolExecutor(1)
        self.blocks = SimpleNamespace(prepare=lambda _: None, begin=lambda *_: None)
        topic = SimpleNamespace(
            name=TOPIC,
            latest=False,
            compression=None,
            topic_id=None,
            partitions=len(self.heads),
            view=SimpleNamespace(column=None),
        )
        topics = SimpleNamespace(
            datastore=TOPIC,
            named=lambda name: topic if name == TOPIC else None,
            refresh=lambda: None,
        )
        self.context = GatewayContext(
            engine=cast("Any", SimpleNamespace(shards=max(1, len(self.heads)), **engine)),
            offsets=cast("Any", self.offsets),
            topics=cast("Any", topics),
            heads=cast("Any", self.heads),
            blocks=cast("Any", self.blocks),
            newest=cast("Any", SimpleNamespace(reads=SimpleNamespace(goes_on=lambda *_: True))),
            kept_fetches=KeptFetches(cast("Any", self.heads)),
            groups=self.groups,
            cluster=cast(
                "Any",
                SimpleNamespace(
                    group_error=lambda _group: None,
                    heartbeat_error=lambda _group: None,
                    claim=lambda _group: CLAIM,
                    refuses=lambda group: group in self.triggers,
                    coordinates=lambda _group: True,
                ),
            ),
            active_groups=cast("Any", None),
            executor=self.executor,
            coordination_executor=self.executor,
            cluster_id="c",
            security=Security({}, frozenset(), b""),
        )

    def ask(self, handler: Any, version: int = 0, **fields: Any) -> Any:
        """A handler's answer to a request with these fields."""
        request: Any = SimpleNamespace(**fields)
        if handler is api_01_fetch:
            request = fetch_of(request, version)
        head = RequestHead(handler.KEY, version, 0, "", 0)

        async def asked() -> Any:
            return await handler.handle(self.context, request, head, PEER)

        return self.run(asked())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)


def topics_of(*partitions: Mapping[str, Any], name: str = TOPIC) -> list[Any]:
    """A request's list of topics with one topic."""
    return [
        SimpleNamespace(
            name=name, topic=name, partitions=[SimpleNamespace(**each) for each in partitions]
        )
    ]


def errors_of(answer: Any) -> list[ErrorCode]:
    """Of every partition in an answer."""
    return [each["error_code"] for topic in answer["topics"] for each in topic["partitions"]]
