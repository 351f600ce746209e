"""Groups and gateways of an instance, as its status shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cellfeed.bridge.coordination.contract import Coordinator, Offsets
from cellfeed.bridge.gateway.groups.slot_owners import slots_by_gateway
from cellfeed.bridge.gateway.nodes import all_nodes
from cellfeed.bridge.triggers.loading import load_program
from cellfeed.bridge.triggers.offsets.lineage import choices, lost_offsets
from cellfeed.bridge.triggers.operate.lag import GroupLag as TriggerLag
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.config.model import DatastoreConfig, TriggersConfig
from cellfeed.status.records_behind import records_behind, view_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import CellfeedError


@dataclass
class GroupLag:
    """How far a group is behind in a topic, in records; ``at_most``: there may be fewer.
    ``committed_at_us``: when it last saved an offset, microseconds since 1970 UTC; 0 for never."""

    group: str
    topic: str
    behind: int
    parked: int
    stopped_because: str | None
    at_most: bool = False
    committed_at_us: int = 0


@dataclass
class GatewayAmongOthers:
    """A living gateway of the datastore, on any host. ``addresses``: by listener, as clients get
    them; ``slots`` of groups that it coordinates."""

    name: str
    node_id: int
    addresses: dict[str, str]
    registry: str
    slots: list[int]


def groups_of_program(entry: TriggersConfig, settings: dict[str, Any]) -> list[str]:
    """The groups of a program, so that one that has not run yet is listed too; none when it cannot
    be loaded here (its processes say why)."""
    try:
        program = load_program(entry.app, settings, entry=entry.name or "")
        return [trigger.group for trigger in program]
    except CellfeedError:
        return []


def living_gateways(datastore: Datastore, coordinator: Coordinator) -> list[GatewayAmongOthers]:
    """The gateways that share the groups now, on any host."""
    known = all_nodes(datastore.state)
    return [
        GatewayAmongOthers(
            name,
            known[name].node_id,
            {
                listener: f"{host}:{port}"
                for listener, (host, port) in known[name].listeners.items()
            },
            f"{known[name].registry[0]}:{known[name].registry[1]}",
            slots,
        )
        for name, slots in slots_by_gateway(coordinator).items()
        if name in known
    ]


def group_lags(
    coordinator: Offsets,
    datastore: Datastore,
    config: DatastoreConfig,
    triggers: set[str],
    heads: dict[int, Head],
) -> list[GroupLag]:
    """Of each group and topic: the records behind, the parked cells, and why it stands still."""
    lags = []
    parked = ParkedCells(datastore.state)
    for group in sorted({*coordinator.groups(), *triggers}):
        offsets = coordinator.fetch_offsets(group)
        for topic in sorted({topic for topic, _ in offsets} or {datastore.name}):
            committed = {
                partition: offset.offset
                for (name, partition), offset in offsets.items()
                if name == topic
            }
            ids = {
                shard: range(max(committed.get(shard, 0), head.log_start), head.watermark)
                for shard, head in heads.items()
            }
            behind, at_most = records_behind(datastore, view_of(config, topic), ids)
            stopped = parked.stopped_because(group)
            if group in triggers and (
                lost := lost_offsets(datastore.state, coordinator, group, topic)
            ):
                stopped = f"{lost}; {choices(group)}"
            committed_at_us = max(
                (offset.committed_at_us for (name, _), offset in offsets.items() if name == topic),
                default=0,
            )
            lags.append(
                GroupLag(
                    group,
                    topic,
                    behind,
                    parked.count(group),
                    stopped,
                    at_most,
                    committed_at_us,
                )
            )
    return lags


def summary(lag: TriggerLag) -> dict[str, Any]:
    """A group as JSON, without its shards."""
    return {
        "group": lag.group,
        "topic": lag.topic,
        "column": lag.about.column if lag.about else None,
        "function": lag.about.function if lag.about else None,
        "cells_behind": lag.cells,
        "seconds_behind": lag.seconds,
        "parked": lag.parked,
        "workers": lag.workers,
        "shards_without_worker": lag.without_worker,
        "waits_because": lag.waits_because or None,
        "takes_nothing": lag.takes_nothing or None,
        "away_because": lag.away_because or None,
    }
