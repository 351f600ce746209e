"""The gateways that live, as clients see them: their addresses, the leader of each partition, and
the gateway that should coordinate each slot of groups. Values only; ``cluster.py`` keeps them up to
date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cellfeed.bridge.gateway.groups.spread import SLOTS, spread
from cellfeed.bridge.gateway.nodes import Address, Node


class Broker(NamedTuple):
    """A gateway, with the address that clients of one listener get."""

    node_id: int
    host: str
    port: int


class LivingGateways:
    """Begins with one gateway: this process's, named ``name``. ``shards``: of the datastore, so the
    number of partitions."""

    def __init__(self, name: str, node: Node, shards: int) -> None:
        self._shards = shards
        self._nodes: Mapping[str, Node] = {}
        self._by_id: dict[int, Node] = {}
        self._leaders: tuple[int, ...] = ()
        self._coordinators: tuple[int, ...] = ()
        self.replace({name: node})

    def replace(self, nodes: Mapping[str, Node]) -> bool:
        """Takes the gateways by name as they are now; whether that changed anything."""
        if nodes == self._nodes:
            return False
        self._nodes = nodes
        self._by_id = {node.node_id: node for node in nodes.values()}
        ids = sorted(self._by_id)
        self._leaders = spread("partition", self._shards, ids)
        self._coordinators = spread("slot", SLOTS, ids)
        return True

    @property
    def controller_id(self) -> int:
        """One of the living, the same for all: clients send it requests for a controller."""
        return min(self._by_id)

    @property
    def leaders(self) -> tuple[int, ...]:
        """Where clients are sent for each partition: the same object until that changes."""
        return self._leaders

    def coordinator(self, slot: int) -> int:
        """The node that coordinates the slot's groups once it has claimed the slot."""
        return self._coordinators[slot]

    def brokers(self, listener: str) -> list[Broker]:
        """The living gateways as clients of this listener reach them; one that has no such listener
        is left out."""
        return [
            Broker(node_id, *node.listeners[listener])
            for node_id, node in sorted(self._by_id.items())
            if listener in node.listeners
        ]

    def address(self, node_id: int, listener: str) -> Address | None:
        """The host and port at which clients of this listener reach a living gateway."""
        node = self._by_id.get(node_id)
        return node.listeners.get(listener) if node is not None else None

    def __str__(self) -> str:
        return ", ".join(
            f"{name} (node {node.node_id})" for name, node in sorted(self._nodes.items())
        )
