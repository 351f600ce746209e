"""The coordination of a kit: in its store, or in a ZooKeeper in memory; and the results of its
workers there."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from cellfeed.bridge.coordination.contract import (
    Claim,
    CommittedOffset,
    Coordinator,
    Session,
    TopicPartition,
)
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import StaleWriter
from cellfeed.testing.gate import Gate
from cellfeed.testing.zookeeper_tree import TreeClient, ZooKeeperTree


class Observer(Protocol):
    """Gets the claims of a worker, and its refused saves."""

    def claimed(self, gate: Gate, claims: Collection[Claim]) -> None: ...

    def refused(self, gate: Gate) -> None:
        """A save was refused: the worker had lost its shard."""
        ...


class _Watched:
    """Reports claims and of refused saves; put before the coordinator that does the work."""

    _gate: Gate
    _observer: Observer

    def claim(self, session: Session, topic: str, partitions: Collection[int]) -> dict[int, Claim]:
        claims: dict[int, Claim] = super().claim(session, topic, partitions)  # type: ignore[misc]
        self._observer.claimed(self._gate, claims.values())
        return claims

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None:
        try:
            super().commit_offsets(group, offsets, claims=claims, entries=entries)  # type: ignore[misc]
        except StaleWriter:
            self._observer.refused(self._gate)
            raise


class _InStore(_Watched, StoreCoordinator):
    def __init__(self, state: StateTable, gate: Gate, observer: Observer) -> None:
        super().__init__(state)
        self._gate = gate
        self._observer = observer


class _InZooKeeper(_Watched, ZooKeeperCoordinator):
    def __init__(
        self, tree: ZooKeeperTree, state: StateTable, gate: Gate, observer: Observer
    ) -> None:
        self.clients: list[TreeClient] = []
        self._gate = gate
        self._observer = observer
        self._tree = tree
        super().__init__(_ADDRESS, state, connect=self._begin)

    def _begin(self, _: ZooKeeperAddress, timeout_s: float) -> TreeClient:
        client = self._tree.begin(timeout_s, self._gate.pass_through)
        self.clients.append(client)
        return client


_ADDRESS = ZooKeeperAddress("the test kit's memory")


class Coordination:
    """One kit's. ``tree``: the ZooKeeper in memory; None for coordination in the store."""

    def __init__(self, state: StateTable, tree: ZooKeeperTree | None) -> None:
        self.tree = tree
        self._opened: dict[Gate, _InZooKeeper] = {}
        self._lock = threading.Lock()
        self.observer: Coordinator = (
            StoreCoordinator(state)
            if tree is None
            else ZooKeeperCoordinator(
                _ADDRESS, state, connect=lambda _, timeout_s: tree.begin(timeout_s)
            )
        )
        """The kit's own eyes."""

    def open(self, state: StateTable, gate: Gate, observer: Observer) -> Coordinator:
        """A worker's coordinator."""
        if self.tree is None:
            return _InStore(state, gate, observer)
        opened = _InZooKeeper(self.tree, state, gate, observer)
        with self._lock:
            self._opened[gate] = opened
        return opened

    def pause(self, gate: Gate) -> None:
        """Pauses a worker. ZooKeeper hears nothing of it meanwhile, so its sessions run out."""
        gate.pause()
        for client in self._clients(gate):
            client.fall_silent()

    def resume(self, gate: Gate) -> None:
        for client in self._clients(gate):
            client.speak_again()
        gate.resume()

    def abandon(self, gate: Gate) -> None:
        """The worker was killed: its sessions are left to run out."""
        for client in self._clients(gate):
            client.abandon()

    def close(self) -> None:
        self.observer.close()

    def _clients(self, gate: Gate) -> list[TreeClient]:
        with self._lock:
            opened = self._opened.get(gate)
        return list(opened.clients) if opened is not None else []
