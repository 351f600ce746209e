"""The gateway's parts that API handlers use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import Offsets
from cellfeed.bridge.gateway.fetch.kept_fetches import KeptFetches
from cellfeed.bridge.gateway.groups.active_groups import ActiveGroups
from cellfeed.bridge.gateway.groups.cluster import GatewayCluster
from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.newest import Newest
from cellfeed.bridge.gateway.request_tallies import RequestTallies
from cellfeed.bridge.gateway.security.listeners import Protection
from cellfeed.bridge.gateway.topics.topics import Topic, Topics
from cellfeed.bridge.gateway.unsent import Unsent
from cellfeed.bridge.gateway.wire.metadata_answer import MetadataPartitions
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.following.heads import LogHeads
from cellfeed.store.security.access import Security
from cellfeed.store.security.quotas import Quotas
from cellfeed.store.security.rights import Kind, Operation

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class GatewayContext:
    """One gateway's parts. ``coordination_executor`` has threads of its own: a call that waits for
    a coordination that is away delays no fetch."""

    engine: Engine
    offsets: Offsets
    topics: Topics
    heads: LogHeads
    blocks: Blocks
    newest: Newest
    kept_fetches: KeptFetches
    groups: GroupTable
    cluster: GatewayCluster
    active_groups: ActiveGroups
    executor: Executor
    coordination_executor: Executor
    cluster_id: str
    security: Security
    """As last read: replaced when users or ACLs change."""
    metadata_partitions: MetadataPartitions = field(default_factory=MetadataPartitions)
    unsent: Unsent = field(default_factory=Unsent)
    quotas: Quotas = field(default_factory=Quotas)
    tallies: RequestTallies = field(default_factory=RequestTallies)
    protections: Mapping[str, Protection] = field(default_factory=dict)
    """By listener."""

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call of the store beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(
            self.executor, lambda: call(*args, **kwargs)
        )

    async def in_coordination(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call of the coordination beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(
            self.coordination_executor, lambda: call(*args, **kwargs)
        )

    def may(self, peer: Peer, kind: Kind, name: str, operation: Operation) -> bool:
        """Whether ACLs let the peer do that. A right on the column that a topic shows, or on the
        datastore, is one on the topic."""
        if kind != "topic" or self.security.is_open:
            return self.security.may(peer.principal, kind, name, operation)
        topic = self.topics.named(name)
        return self.security.may_topic(
            peer.principal,
            self.topics.datastore,
            name,
            operation,
            exists=topic is not None,
            column=None if topic is None else topic.view.column,
        )

    def topic_refused(self, peer: Peer, topic: Topic | None, operation: Operation) -> bool:
        """For a topic that was asked for by its id: a topic that does not exist refuses nobody."""
        return topic is not None and not self.may(peer, "topic", topic.name, operation)

    async def topics_named(self, names: Iterable[str]) -> list[Topic | None]:
        """The topics of those names, in order. When one is not known yet the store's columns are
        looked at, once for all of them."""
        asked = list(names)
        found = [self.topics.named(name) for name in asked]
        if None in found:
            await self.in_thread(self.topics.refresh)
            found = [self.topics.named(name) for name in asked]
        return found

    async def topics_identified(self, topic_ids: Iterable[UUID | None]) -> list[Topic | None]:
        """The topics of those ids, likewise."""
        asked = list(topic_ids)
        found = [self.topics.identified(topic_id) for topic_id in asked]
        if None in found:
            await self.in_thread(self.topics.refresh)
            found = [self.topics.identified(topic_id) for topic_id in asked]
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
        return (
            ErrorCode.fenced_leader_epoch
            if current_leader_epoch < epoch
            else ErrorCode.unknown_leader_epoch
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """The sender of a request. ``listener``: the name of its listener, which decides the addresses
    in answers; ``connection``: the number of the connection, which no other one of this gateway
    ever has; ``asked_s``: when the request was read, by ``time.monotonic``."""

    client_id: str
    host: str
    version: int
    listener: str
    principal: str
    connection: int
    asked_s: float
