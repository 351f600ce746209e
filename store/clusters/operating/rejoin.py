"""A node rejoins its cluster: as the minion that it is, or after the cells that it never replicated
were put again.

An old master may hold cells that no minion had when another node became master. Nobody was shown
them, and the new master may have given their ids to other cells. So it may only follow again when
it is a prefix of the new master's history. Otherwise :func:`come_back` lists the cells and erasures
that it has beyond. The caller repeats them, as ordinary puts (they get new ids) and erasures. Then
:func:`clone` makes the node a copy of the master. Often there are none, only entries that the
processes write of themselves (leases, addresses): then a copy loses nothing, and needs no
confirmation.

An old master that nobody could fence, because it was paused or cut off, continues where it was: a
commit that was on its way ends, and a writer that has not heard of the promotion may still be
acknowledged there. So it is fenced *before* it is looked at, and a copy that follows on a list
refuses a node that has written since.
"""

from __future__ import annotations

import logging

from cellfeed.store.clusters.model.promises import refuse_promised
from cellfeed.store.clusters.model.roles import Role, change_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.never_replicated import NeverReplicated, never_replicated
from cellfeed.store.clusters.operating.present_role import (
    QUICK_TIMEOUT_S,
    cluster_role,
    locked_role,
    role_on,
)
from cellfeed.store.engines.mysql.read_only import is_read_only, make_read_only
from cellfeed.store.engines.mysql.replication import (
    Gtid,
    follow,
    minion_status,
    position,
    start_receiving,
)
from cellfeed.store.engines.mysql.semi_sync import set_semi_sync
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import NodeAhead, ProtectData, StorageUnavailable, Unavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import refuse_other_history

declare("rejoin.after_record")

_log = logging.getLogger("cellfeed.failover")


def heard_epoch(cluster: ClusterServers, node: str) -> int | None:
    """The epoch of the role that the node has heard of; None when it reports none (a bare server,
    or half a copy)."""
    role = role_on(cluster, node)
    return role.epoch if role else None


def is_prefix(cluster: ClusterServers, node: str, role: Role) -> bool:
    """Whether all that the node has is on the master as well, so that it may follow it.

    The node's position is compared with that of the *first* promotion that it has not heard of:
    that new master had all that the node shares with it, and later positions count later writes of
    others.
    """
    server, master = cluster.server(node), cluster.server(role.master)
    status = minion_status(server)
    if status is not None and status.follows(master) and not status.error:
        return True
    heard = heard_epoch(cluster, node)
    if heard is None:
        return False
    limit = role.promotion_after(heard)
    return (
        position(server).sequence <= (position(master) if limit is None else Gtid(limit)).sequence
    )


def come_back(cluster: ClusterServers, node: str) -> NeverReplicated | None:
    """Fences the node and makes it a minion. Where it has something that the master has not,
    returns that, to be put again before :func:`clone`. Raises as :func:`follow_again`."""
    cluster.refuse_managed("rejoin")
    try:
        follow_again(cluster, node)
    except NodeAhead:
        role, _ = cluster_role(cluster)
        return never_replicated(cluster, node, role)
    return None


def follow_again(cluster: ClusterServers, node: str) -> None:
    """Fences the node and makes it a minion of the present master. Raises NodeAhead, having fenced
    it, when it has something that the master has not. Raises ProtectData for the master itself.
    Raises StorageUnavailable while a promotion is under way, or where the node holds nothing to
    resume from."""
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        with locked_role(cluster, quick) as role:
            _follow_again(cluster, quick, node, role)
    finally:
        quick.close()


def _follow_again(cluster: ClusterServers, quick: ClusterServers, node: str, role: Role) -> None:
    server = cluster.server(node)
    if node == role.master:
        raise ProtectData(f"{node} is the master of cluster {cluster.name}")
    _refuse_foreign(cluster, node, role)
    if not is_read_only(server):
        make_read_only(server)
        _log.warning(
            "cluster %s: %s is back and was master once; it is read-only now", cluster.name, node
        )
    refuse_promised(quick, role)
    if not is_prefix(cluster, node, role):
        heard = heard_epoch(cluster, node)
        if heard is None:
            raise StorageUnavailable(
                f"{node} holds nothing of the datastore, or a copy to it is under way: `cellfeed"
                f" cluster status`, and if need be `cellfeed cluster rejoin {cluster.name} {node}"
                " --copy`"
            )
        at = role.promotion_after(heard)
        raise NodeAhead(
            f"{node} is at {position(server).text}, and the first master that it has not heard of"
            f" was at {at or 'a position not known any more'}: {node} holds cells that were"
            " never replicated; list it, have it put again and the node cloned with"
            " `cellfeed cluster"
            " rejoin --put-again`"
        )
    # Recorded before it follows, so that nobody sees cells that only it and the master have while a
    # promotion could continue without it; where no other minion is left that a semi-synchronous
    # commit could wait for, it has to be there for that itself.
    joined = role.with_minion(node, semi_sync=cluster.semi_sync)
    recorded = _is_recorded(quick, role, joined)
    failpoint("rejoin.after_record")
    set_semi_sync(server, master=False, wanted=joined.semi_sync)
    if joined.semi_sync and not role.semi_sync:
        set_semi_sync(
            cluster.server(role.master), master=True, wanted=True
        )  # also for processes that have not heard of the first minion yet
    follow(server, cluster.server(role.master))
    if not recorded and not _is_recorded(cluster, role, joined):
        raise StorageUnavailable(
            f"{node} follows {role.master}, which could not write down that it is a minion again;"
            " rejoin it once more"
        )


def _refuse_foreign(cluster: ClusterServers, node: str, role: Role) -> None:
    """Raises ProtectData for a server of another cluster or history. It is left alone: its writers
    have nothing to do with a wrong address here."""
    found = role_on(cluster, node)
    if found is None:
        return
    if found.cluster != role.cluster:
        raise ProtectData(
            f"{node}: {role.why_foreign(found)}. Nothing was done to it: name servers of cluster"
            f" {cluster.name} in the configuration"
        )
    refuse_other_history(
        f"nothing was done to {node}: it",
        found.history_id,
        f"cluster {cluster.name}",
        role.history_id,
        "Nothing of it may be put again; to make it a copy of the master: cellfeed cluster rejoin"
        f" {cluster.name} {node} --copy",
    )


def start_again(cluster: ClusterServers, node: str, epoch: int) -> None:
    """Starts a minion that has stopped; the next error stops it again. Nothing is done when the
    epoch is another one by now.

    A promotion stops minions too, and transactions that one received after the choice would be
    another history: so no promotion is under way meanwhile. Raises StorageUnavailable while one is.
    """
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        with locked_role(cluster, quick) as role:
            refuse_promised(quick, role)
            if role.epoch == epoch:
                start_receiving(cluster.server(node))
    finally:
        quick.close()


def _is_recorded(cluster: ClusterServers, role: Role, joined: Role) -> bool:
    """Has the role name its minions: from then on no promotion proceeds without one, unless it is
    given up by name. False when that was not confirmed."""
    try:
        return change_role(
            MySqlState(cluster.server(role.master), cluster.meta, role.own_terms), role, joined
        )
    except Unavailable as error:
        _log.warning(
            "cluster %s: that %s are minions could not be written down yet: %s",
            cluster.name,
            " and ".join(joined.minions),
            error,
        )
        return False
