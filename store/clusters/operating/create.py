"""``cluster init``: bare servers become one master and its minions, with the datastore's schema, a
role and the shard map.

Steps, each of which may be run again after a kill:

    1. every server is checked; one that holds other databases is refused, unless they are this
       datastore's and it has no role yet
    2. the minions follow the first server, semi-synchronous where asked for; bare servers forget
       the history of their installation first
    3. the schema is made on the master, and replicates
    4. the shard map, then the role, are written on the master: from then on the cluster is there

A cluster that was made before keeps everything but its mode of replication, which becomes the
configuration's.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cellfeed.store.cells.sharding import check_new_shard_count
from cellfeed.store.clusters.model.restore_mark import Mark, read_mark
from cellfeed.store.clusters.model.roles import Role, read_role, write_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import ShardMap, write_map
from cellfeed.store.clusters.operating.bare_servers import has_state, make_minion
from cellfeed.store.clusters.operating.catch_up import wait_for_minions
from cellfeed.store.clusters.operating.replication_mode import follow_configuration
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.memory import memory_advice
from cellfeed.store.engines.mysql.read_only import open_for_writes
from cellfeed.store.engines.mysql.replication import check_mariadb
from cellfeed.store.engines.mysql.semi_sync import set_semi_sync
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import CellfeedError, ProtectData, Unavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import refuse_other_history

declare("cluster.init.after_follow", "cluster.init.after_schema", "cluster.init.after_map")

_log = logging.getLogger("cellfeed.clusters")
_FOREIGN: Final = (
    "Nothing was done. Name servers of this datastore in the configuration, or bare ones"
)


@dataclass(frozen=True)
class Initialised:
    """The result of ``init_cluster``. ``was_there``: the cluster had been made before.
    ``semi_sync``: the mode of replication that it has. ``advice``: by server, a hint to its
    operator about its memory."""

    cluster: str
    master: str
    minions: list[str]
    was_there: bool
    semi_sync: bool
    advice: dict[str, str]


def init_cluster(
    cluster: ClusterServers, shard_map: ShardMap, *, known: bool = False
) -> Initialised:
    """See the module. ``known``: clusters of the datastore hold the map already, so its history
    counts. Raises ProtectData for servers that hold something else. Raises Unavailable for one that
    does not answer while no other names a cluster that was made before."""
    master_name, *minion_names = cluster.servers
    master = cluster.server(master_name)
    found, away = list[Role](), list[Unavailable]()
    for server in cluster.servers.values():
        try:
            if minion_names:
                check_mariadb(server)
            if (each := _role(cluster, server)) is not None:
                found.append(each)
        except Unavailable as error:
            away.append(error)
    if found:
        role = max(found, key=lambda each: each.epoch)
        if role.cluster != cluster.name:
            raise ProtectData(
                f"these servers are cluster {role.cluster!r} already; they cannot become"
                f" {cluster.name!r}"
            )
        for each in found if known else ():
            refuse_other_history(
                f"a server of cluster {cluster.name}",
                each.history_id,
                "the datastore",
                shard_map.history_id,
                _FOREIGN,
            )
        return _initialised(cluster, _in_wanted_mode(cluster, role), was_there=True)
    if away:
        raise away[0]  # only a cluster that has been made can do without one of its servers
    if not known:
        check_new_shard_count(cluster.shards)
    refuse_restore_under_way(cluster)
    state = prepare_cluster(cluster, shard_map)
    # A minion that is opened before it has the schema is refused, and left alone for a
    # while.
    wait_for_minions(
        cluster, master_name, minion_names, "run `cellfeed cluster init` again when it is mended"
    )
    # Last: without a role nobody uses the cluster. Semi-synchronous from here on, when the minions
    # are there to acknowledge.
    if minion_names:
        set_semi_sync(master, master=True, wanted=cluster.semi_sync)
    role = Role(
        cluster.name,
        master_name,
        0,
        minion_names,
        cluster.semi_sync and bool(minion_names),
        history_id=shard_map.history_id,
    )
    write_role(state, role)
    _log.info(
        "cluster %s: %s is master, %s follow",
        cluster.name,
        master_name,
        ", ".join(minion_names) or "none",
    )
    return _initialised(cluster, role, was_there=False)


def _initialised(cluster: ClusterServers, role: Role, *, was_there: bool) -> Initialised:
    return Initialised(
        cluster.name, role.master, role.minions, was_there, role.semi_sync, _memory_advice(cluster)
    )


def _memory_advice(cluster: ClusterServers) -> dict[str, str]:
    """Of the servers that answer."""
    found = {}
    for name, server in cluster.servers.items():
        with suppress(CellfeedError), server.connection() as connection:
            if (advice := memory_advice(connection)) is not None:
                found[name] = advice
    return found


def _in_wanted_mode(cluster: ClusterServers, role: Role) -> Role:
    """The role after the mode of replication was made the configuration's. A cluster that cannot
    change it now keeps it: it works as it did."""
    try:
        return follow_configuration(cluster)
    except CellfeedError as error:
        _log.error("cluster %s: the mode of replication stays as it is: %s", cluster.name, error)
        return role


def prepare_cluster(cluster: ClusterServers, shard_map: ShardMap) -> MySqlState:
    """All but the role: bare servers, or those of a run that was killed, become a master with the
    schema and the shard map, and its minions. Returns the state table. Raises as
    :func:`init_cluster`."""
    master_name, *minion_names = cluster.servers
    master = cluster.server(master_name)
    for name in minion_names:
        make_minion(cluster, name, master)
    failpoint("cluster.init.after_follow")
    open_for_writes(master)
    MySqlEngine(
        MySqlServer(master.address),
        cluster.datastore,
        cluster.shards,
        owned=shard_map.shards_of(cluster.name),
        create=True,
    ).close()
    failpoint("cluster.init.after_schema")
    state = MySqlState(master, cluster.meta)
    write_map({cluster.name: state}, shard_map)
    failpoint("cluster.init.after_map")
    return state


def refuse_restore_under_way(cluster: ClusterServers) -> None:
    """Raises ProtectData when a backup is being restored into these servers: a role would open
    storage that is not whole."""
    for server in cluster.servers.values():
        mark = mark_of(cluster, server)
        if mark is not None and not mark.done:
            raise ProtectData(
                f"{server}: a restore of backup {mark.backup} is under way in cluster"
                f" {cluster.name}: run `cellfeed restore` again to finish it"
            )


def mark_of(cluster: ClusterServers, server: MySqlServer) -> Mark | None:
    """The mark of a restore that a server holds; None where it holds none. Raises Unavailable."""
    return read_mark(MySqlState(server, cluster.meta)) if has_state(cluster, server) else None


def _role(cluster: ClusterServers, server: MySqlServer) -> Role | None:
    return read_role(MySqlState(server, cluster.meta)) if has_state(cluster, server) else None
