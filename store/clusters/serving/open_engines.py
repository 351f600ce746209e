"""The engines of one storage node: one for each time-out, opened when it is first needed."""

from __future__ import annotations

import math
import threading

from cellfeed.store.clusters.serving.node_engine import NodeEngine, OpenNode
from cellfeed.store.errors import StorageUnavailable


class OpenEngines:
    """Any number of threads. ``name``: the node's."""

    def __init__(self, name: str, open_node: OpenNode) -> None:
        self._name = name
        self._open_node = open_node
        self._lock = threading.Lock()
        self._engines: dict[float, NodeEngine] = {}
        self._closed = False

    def get(self, timeout_s: float) -> NodeEngine:
        """The one with this time-out for each answer. Raises StorageUnavailable."""
        with self._lock:
            self._check_open()
            engine = self._engines.get(timeout_s)
        if engine is not None:
            return engine
        opened = self._open_node(timeout_s)
        with self._lock:
            engine = self._engines.setdefault(timeout_s, opened)
        if engine is not opened:
            opened.close()
        return engine

    def connected_at_s(self) -> float:
        """When the youngest connection was begun, by the monotonic clock."""
        with self._lock:
            return max(
                (engine.connected_at_s for engine in self._engines.values()), default=-math.inf
            )

    def abort(self) -> None:
        """Cuts off the calls under way."""
        with self._lock:
            engines = list(self._engines.values())
        for engine in engines:
            engine.abort()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            engine.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageUnavailable(f"node {self._name} is closed")
