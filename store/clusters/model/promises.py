"""Promises: before a promotion raises an epoch, a majority of nodes remembers that it began.

A promotion writes its epoch first on one node, the new master. That node may die before any other
has heard of it, and return later with the highest epoch of all. So each node that answers remembers
the epoch before, in a database of its own that is neither replicated nor copied. A majority has the
promise, and every later promotion asks a majority: so

- no epoch is given twice: the next promotion takes one above all promises.
- while an answering node remembers a higher epoch than any node reports, no node follows and no
  master opens in the lower one: the missing node would lack cells that such a master acknowledges.
  Either the missing node returns, or a promotion above both settles who is master.

The model in ``docs/inside/cluster-model.md`` found the loss without promises
(``promotion-not-promised``).

Crash points: a promise that no raise follows costs one epoch number, and a promotion.
"""

from __future__ import annotations

from collections.abc import Collection

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.mysql.promises import read_promise, write_promise
from cellfeed.store.errors import StorageUnavailable, Unavailable
from cellfeed.store.failpoints import marked


def promised_epoch(cluster: ClusterServers, history_id: str, silent: Collection[str] = ()) -> int:
    """The highest epoch that a node which answers has promised in this history; -1 when none has.
    ``silent`` nodes are not asked."""
    found = [-1]
    for name, server in cluster.servers.items():
        if name in silent:
            continue
        try:
            found.append(read_promise(server, cluster.promised, history_id))
        except Unavailable:
            continue
    return max(found)


@marked("role.promise")
def promise(cluster: ClusterServers, role: Role, epoch: int, silent: Collection[str] = ()) -> None:
    """Has every node that answers remember the epoch. Raises StorageUnavailable when they are no
    majority: then nothing may be raised. ``silent`` nodes are not asked."""
    done, failed = [], []
    for name, server in cluster.servers.items():
        if name in silent:
            continue
        try:
            write_promise(server, cluster.promised, role.history_id, epoch)
        except Unavailable as error:
            failed.append(f"{name}: {error}")
        else:
            done.append(name)
    if 2 * len(done) <= len(cluster.servers):
        raise StorageUnavailable(
            f"cluster {cluster.name}: nobody was promoted: of {len(cluster.servers)} nodes only"
            f" {', '.join(done) or 'none'} can remember epoch {epoch}, and a majority is needed:"
            f" {'; '.join(failed)}"
        )


def refuse_promised(cluster: ClusterServers, role: Role) -> None:
    """Raises StorageUnavailable while a node that answers remembers an epoch above the role's."""
    promised = promised_epoch(cluster, role.history_id)
    if promised > role.epoch:
        raise StorageUnavailable(
            f"cluster {cluster.name}: a promotion to epoch {promised} began, and the node that it"
            " chose does not answer: bring that node back, or promote another one without it:"
            f" cellfeed cluster promote {cluster.name} --give-up NODE"
        )
