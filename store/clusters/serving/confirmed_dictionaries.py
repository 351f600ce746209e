"""Waits until a minion has a dictionary, so that a promotion loses no content that bodies name."""

from __future__ import annotations

import time
from typing import Final

from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node_engine import READ_TIMEOUT_S, NodeEngine
from cellfeed.store.errors import StorageUnavailable, Unavailable

CONFIRM_TIMEOUT_S: Final = 10.0
"""How long ``add`` waits until a minion has the content, in seconds; it is usually there in
milliseconds."""

_PAUSE_S: Final = 0.02


def wait_for_minion(cluster: Cluster, dictionary: Dictionary) -> None:
    """Raises StorageUnavailable when no minion that follows the master has it in time."""
    deadline_s = time.monotonic() + CONFIRM_TIMEOUT_S
    while cluster.role().minions:
        cluster.look()
        master = cluster.role().master
        if any(
            node.name != master and cluster.follows(node) and _has(cluster, node.name, dictionary)
            for node in cluster.nodes.values()
        ):
            return
        if time.monotonic() > deadline_s:
            raise StorageUnavailable(
                f"cluster {cluster.name}: no minion has dictionary {dictionary.name} after"
                f" {CONFIRM_TIMEOUT_S:.0f} s: it is not used yet"
            )
        time.sleep(_PAUSE_S)


def _has(cluster: Cluster, node: str, dictionary: Dictionary) -> bool:
    def found(engine: NodeEngine) -> bool:
        return engine.dictionaries.find(dictionary.dictionary_id) == dictionary

    try:
        return cluster.node(node).call(found, READ_TIMEOUT_S)
    except Unavailable:
        return False
