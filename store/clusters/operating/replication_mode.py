"""A change of the mode of replication is a promotion of the master itself: it is fenced, the epoch
with the mode is raised, and it is opened. So no writer that remembers the other mode is
acknowledged in it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

import msgspec

from cellfeed.store.clusters.model.promises import promise
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.new_master import raise_epoch
from cellfeed.store.clusters.operating.present_role import (
    QUICK_TIMEOUT_S,
    locked_role,
    minority,
    takes_writes,
)
from cellfeed.store.clusters.operating.promote import next_epoch
from cellfeed.store.engines.mysql.read_only import make_read_only, open_for_writes
from cellfeed.store.engines.mysql.replication import position, start_receiving, stop_receiving
from cellfeed.store.engines.mysql.semi_sync import set_semi_sync
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mode.after_fence", "mode.after_raise")

_log: Final = logging.getLogger("cellfeed.failover")


def follow_configuration(cluster: ClusterServers) -> Role:
    """Gives the cluster the mode of replication that its configuration asks for; returns the role,
    which says the mode that it has. A cluster that never had a minion has none: semi-synchronous
    replication begins with its first one. Raises StorageUnavailable when a node that is needed does
    not answer: the mode is as it was, or a promotion is left to be finished.

    Killed behind the fence: the master takes no writes, in the mode that it had, until a promotion
    is run. Killed behind the raise: the same, in the new mode.
    """
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        silent = minority(quick)
        with locked_role(cluster, quick) as role:
            if role.semi_sync == cluster.semi_sync or not (role.semi_sync or role.minions):
                return role
            return _change_mode(cluster, quick, role, silent)
    finally:
        quick.close()


def _change_mode(
    cluster: ClusterServers, quick: ClusterServers, role: Role, silent: Collection[str]
) -> Role:
    master = cluster.server(role.master)
    if not takes_writes(quick, role):
        raise StorageUnavailable(
            f"cluster {cluster.name}: {role.master} takes no writes: finish its promotion first:"
            f" cellfeed cluster promote {cluster.name}"
        )
    if cluster.semi_sync:
        # a minion acknowledges over a connection that begins afterwards; its lock must outlive
        # that, so it is not fenced
        for name in role.minions:
            set_semi_sync(cluster.server(name), master=False, wanted=True)
            stop_receiving(cluster.server(name))
            start_receiving(cluster.server(name))
    epoch = next_epoch(quick, role, silent)
    make_read_only(quick.server(role.master))
    master.drop_idle()
    failpoint("mode.after_fence")
    try:
        promise(quick, role, epoch, silent)
    except StorageUnavailable:
        open_for_writes(master)
        raise
    set_semi_sync(master, master=True, wanted=False)
    raised = msgspec.structs.replace(
        role.promoted(role.master, role.minions, position(master).text, epoch),
        semi_sync=cluster.semi_sync,
    )
    raise_epoch(cluster, raised)
    failpoint("mode.after_raise")
    set_semi_sync(master, master=True, wanted=raised.semi_sync)
    open_for_writes(master)
    _log.warning(
        "cluster %s: %s in epoch %d",
        cluster.name,
        "semi-synchronous" if raised.semi_sync else "asynchronous",
        raised.epoch,
    )
    return raised
