"""Whether another node may have become master before a read began.

An old master that nobody could fence lives on, and knows nothing of its successor. Its cells are
right, for cells do not change. That something is *not* there, or that a list ends, only the present
master may say. So before a reader believes such an answer it asks the other nodes who is master:

    all of them answer       The chosen node shows its role ``TAKEOVER_S`` before it takes its first
                             write. So a look that began since then, counted back from the read's
                             beginning, has seen every master whose writes the read must know.
    a minority is silent     The silent node may be the new master, and the others may lag. But a
                             majority promised the epoch before it was raised, so one of those that
                             answer remembers it.
    a majority is silent     The answer is not sure. The read waits for those that were heard from
                             within ``CONFIRM_S``, for a busy machine is late.

One look serves all reads of ``TAKEOVER_S``.

The times are durations of one machine's monotonic clock. Where that stands still while a machine is
suspended, a read that was under way meanwhile may miss cells that were acknowledged meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.node import SLOW_S, StorageNode
from cellfeed.store.clusters.serving.node_engine import WATCH_TIMEOUT_S
from cellfeed.store.errors import CellfeedError

Asked = list[tuple[StorageNode, int]]


def ask_silent(nodes: Collection[StorageNode], master: str, since_s: float) -> Asked:
    """Has the nodes beside the master looked at that were not heard since then; the tickets are for
    :func:`is_majority_heard`. A node that is away, or another cluster's, is left to its watcher."""
    return [
        (node, node.ask())
        for node in _silent(nodes, master, since_s)
        if not node.breaker.is_open and node.refused is None
    ]


def is_majority_heard(
    nodes: Collection[StorageNode], master: str, since_s: float, asked: Asked
) -> bool:
    """Whether the nodes not heard from since then are too few to have promoted another master."""
    for slow_s in (SLOW_S, WATCH_TIMEOUT_S):
        for node, ticket in asked:
            node.wait(ticket, slow_s)
        if 2 * len(_silent(nodes, master, since_s)) <= len(nodes):
            return True
    return False


def has_successor(nodes: Collection[StorageNode], role: Role, since_s: float) -> bool:
    """Whether a silent node may have become master: one of the others has promised its epoch, or
    does not say. The caller has heard a majority, and compares the roles that it heard."""
    silent = _silent(nodes, role.master, since_s)
    try:
        return bool(silent) and any(
            node.promised_epoch(role.history_id, since_s) > role.epoch
            for node in nodes
            if node not in silent
        )
    except CellfeedError:
        return True


def _silent(nodes: Collection[StorageNode], master: str, since_s: float) -> list[StorageNode]:
    return [node for node in nodes if node.name != master and node.heard_at_s < since_s]
