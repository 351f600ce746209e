"""What the API handlers work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from kio.schema.errors import ErrorCode

from bridge.coordination.contract import Offsets
from bridge.gateway.blocks import Blocks
from bridge.gateway.group_table import GroupTable
from bridge.gateway.heads import LogHeads
from bridge.gateway.topics import Topic, Topics
from store.engines.contract import Engine

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class GatewayContext:
    """One gateway's parts. ``node_id`` and the advertised address are what clients are told."""

    engine: Engine
    offsets: Offsets
    topics: Topics
    heads: LogHeads
    blocks: Blocks
    groups: GroupTable
    executor: Executor
    cluster_id: str
    node_id: int
    advertised_host: str
    advertised_port: int

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call (the store's, the coordinator's) beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, lambda: call(*args, **kwargs))

    async def topic(self, name: str) -> Topic | None:
        """The topic of that name, looking at the store's columns when it is not known yet."""
        if (found := self.topics.named(name)) is None:
            await self.in_thread(self.topics.refresh)
            found = self.topics.named(name)
        return found

    async def identified(self, topic_id: Any) -> Topic | None:
        """The topic of that id, likewise."""
        if (found := self.topics.identified(topic_id)) is None:
            await self.in_thread(self.topics.refresh)
            found = self.topics.identified(topic_id)
        return found

    def partition_error(self, topic: Topic | None, partition: int) -> ErrorCode:
        """``none``, or why this partition of this topic is not here."""
        if topic is None or not 0 <= partition < self.engine.shards:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.none

    def epoch_error(self, partition: int, current_leader_epoch: int) -> ErrorCode:
        """How the leader epoch that a client believes in compares with the shard's."""
        epoch = self.heads[partition].leader_epoch
        if current_leader_epoch < 0 or current_leader_epoch == epoch:
            return ErrorCode.none
        return ErrorCode.fenced_leader_epoch if current_leader_epoch < epoch else ErrorCode.unknown_leader_epoch


@dataclass(frozen=True, slots=True)
class Peer:
    """Who sent a request."""

    client_id: str
    host: str
    version: int
