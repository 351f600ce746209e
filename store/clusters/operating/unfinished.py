"""A promotion that was cut off: its remaining steps."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.new_master import open_master
from cellfeed.store.clusters.operating.present_role import why_foreign
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.engines.mysql.read_only import is_read_only
from cellfeed.store.engines.mysql.replication import minion_status
from cellfeed.store.errors import Unavailable

_log = logging.getLogger("cellfeed.failover")


def is_unfinished(cluster: ClusterServers, role: Role) -> bool:
    """Whether a promotion was killed between raising the epoch and opening the new master, or right
    after fencing the old one: either way the role's master has every cell that was acknowledged,
    and is closed."""
    try:
        server = cluster.server(role.master)
        if why_foreign(cluster, role.master, role):
            return False
        return is_read_only(server) and minion_status(server) is None
    except Unavailable:
        return False


def finish(cluster: ClusterServers, role: Role, give_up: Collection[str]) -> Promotion:
    _log.warning(
        "cluster %s: finishing the promotion of %s that was begun before", cluster.name, role.master
    )
    minions = [name for name in role.minions if name not in give_up]
    for name in list(minions):
        if foreign := why_foreign(cluster, name, role):
            _log.error("cluster %s: %s is left alone: %s", cluster.name, name, foreign)
            minions.remove(name)
    open_master(cluster, msgspec.structs.replace(role, minions=minions))
    position = dict(role.promotions).get(role.epoch, "")
    return Promotion(
        cluster.name,
        role.master,
        role.epoch,
        "",
        fenced=True,
        minions=minions,
        gave_up=sorted(give_up),
        position=position,
    )
