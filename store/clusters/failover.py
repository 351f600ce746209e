"""Promotion: a minion becomes master, the old master is fenced, the others follow (design §2.5).

Steps, and what a kill after each leaves:

    1. lock          a user lock on a majority of the nodes: one promotion at a time; it ends with its connections
    2. fence         the old master, if it answers: read-only, its clients cut off. Killed here: no writes until a promotion is run again
    3. collect       the minions stop receiving, apply what they have, and the one with most is chosen
    4. raise         on the chosen one, in one transaction: the shards' leader epochs, where each begins, and the role. From its commit on whoever hears of
                     the role sends writes there; they are refused (definitely not written) until step 6
    5. re-point      the other minions follow the new master
    6. open          the new master takes writes

Run again after a kill it does what is left: a role whose master is still read-only is opened, minions are pointed to it.

What is lost by it. With semi-synchronous replication every acknowledged cell is on a minion, so nothing. Without, the old master's last commits may be on
no minion: they were never shown (the watermark counts minions), and come back from the buffer of another cluster, or with the old master (``rejoin``), under
new ids.
A minion that is left out may hold cells that were shown; so every minion must answer, unless the operator names it as given up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec

from store.clusters.roles import ROLE_KEY, Role, newest, read_role
from store.clusters.storage import ClusterServers
from store.engines.mysql_connections import query, run_script
from store.engines.mysql_replication import (
    Gtid,
    check_mariadb,
    follow,
    is_read_only,
    make_read_only,
    minion_status,
    open_for_writes,
    position,
    promotion_lock,
    set_semi_sync,
    stop_following,
    stop_receiving,
)
from store.engines.mysql_state import MySqlState
from store.errors import CellfeedError, ProtectData, StaleWriter, StorageUnavailable, Unavailable
from store.failpoints import declare, failpoint

declare("promote.after_fence", "promote.after_collect", "promote.after_raise", "promote.after_repoint", "promote.after_open")

_log = logging.getLogger("cellfeed.failover")
QUICK_TIMEOUT_S: Final = 1.0
"""How long a node is waited for that may be the one that hangs, in seconds."""

_EPOCH_MAX: Final = (1 << 31) - 1


@dataclass
class Promotion:
    """What a promotion came to. ``gave_up``: nodes that were left out; ``position``: what the new master had when it became one."""

    cluster: str
    master: str
    epoch: int
    old_master: str
    fenced: bool
    minions: list[str] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)
    position: str = ""


def cluster_role(cluster: ClusterServers) -> tuple[Role, dict[str, str]]:
    """The role of the highest epoch that a node tells, and why the others tell none. Raises StorageUnavailable when nobody does."""
    roles: dict[str, Role | None] = {}
    silent: dict[str, str] = {}
    for name, server in cluster.servers.items():
        try:
            roles[name] = read_role(MySqlState(server, cluster.meta))
        except CellfeedError as error:
            silent[name] = str(error)
    role = newest(roles.values())
    if role is None:
        raise StorageUnavailable(f"cluster {cluster.name}: no node tells who is master: {'; '.join(silent.values()) or 'it was never made (cluster init)'}")
    return role, silent


def promote(cluster: ClusterServers, to: str | None = None, give_up: Collection[str] = (), epoch: int | None = None) -> Promotion:
    """Makes ``to`` (the most advanced minion, when not given) master. ``give_up``: minions to go on without. ``epoch``: only if that is still the role's. See
    the module.

    Raises StaleWriter when the epoch is another one by now, ProtectData when cells that were shown could be lost by it, StorageUnavailable when a node that
    is needed does not answer.
    """
    for node in (*give_up, *([to] if to else [])):
        cluster.server(node)
    # A master that hangs must not hold up its own replacement: it is asked, and fenced, with little patience.
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        return _promote_locked(cluster, quick, to, give_up, epoch)
    finally:
        quick.close()


def _promote_locked(cluster: ClusterServers, quick: ClusterServers, to: str | None, give_up: Collection[str], epoch: int | None) -> Promotion:
    role, silent = cluster_role(quick)
    for server in cluster.servers.values():
        server.drop_idle()  # a fence, by this promotion or one before, cuts connections that were kept
    answering = [name for name in cluster.servers if name not in silent]
    if 2 * len(answering) <= len(cluster.servers):
        raise StorageUnavailable(f"cluster {cluster.name}: only {', '.join(answering)} answer; a majority of {len(cluster.servers)} nodes is needed: {silent}")
    with promotion_lock([cluster.servers[name] for name in answering], cluster.name):
        role, _ = cluster_role(quick)
        if epoch is not None and epoch != role.epoch:
            raise StaleWriter(f"cluster {cluster.name} is in epoch {role.epoch} by now, with {role.master} as master")
        if _is_unfinished(quick, role) and to in (None, role.master):
            return _finish(cluster, role, give_up)
        return _promote(cluster, quick, role, to, give_up)


def _is_unfinished(cluster: ClusterServers, role: Role) -> bool:
    """Whether a promotion was killed between raising the epoch and opening the new master, or right after fencing the old one: either way the role's master
    has every cell that was acknowledged, and is closed."""
    try:
        server = cluster.server(role.master)
        return is_read_only(server) and minion_status(server) is None
    except Unavailable:
        return False


def _promote(cluster: ClusterServers, quick: ClusterServers, role: Role, to: str | None, give_up: Collection[str]) -> Promotion:
    if to == role.master:
        raise ProtectData(f"{to} is the master of cluster {cluster.name} already")
    candidates = [name for name in cluster.servers if name != role.master and name not in give_up]
    _check_following(cluster, role, candidates)
    for name in candidates:
        check_mariadb(cluster.servers[name])
    done = Promotion(cluster.name, "", role.epoch + 1, role.master, fenced=False, gave_up=sorted(give_up))
    done.fenced = _fence(quick, role)
    failpoint("promote.after_fence")
    positions = {name: stop_receiving(cluster.servers[name]) for name in candidates}
    failpoint("promote.after_collect")
    done.master = _chosen(cluster, positions, to)
    done.position = positions[done.master].text
    done.minions = [name for name in candidates if name != done.master]
    raised = Role(cluster.name, done.master, role.epoch + 1, done.minions, role.semi_sync, done.position)
    _raise(cluster, raised)
    failpoint("promote.after_raise")
    _open(cluster, raised)
    return done


def _finish(cluster: ClusterServers, role: Role, give_up: Collection[str]) -> Promotion:
    _log.warning("cluster %s: finishing the promotion of %s that was begun before", cluster.name, role.master)
    minions = [name for name in role.minions if name not in give_up]
    _open(cluster, Role(role.cluster, role.master, role.epoch, minions, role.semi_sync, role.promoted_at))
    return Promotion(cluster.name, role.master, role.epoch, "", fenced=True, minions=minions, gave_up=sorted(give_up), position=role.promoted_at)


def _check_following(cluster: ClusterServers, role: Role, candidates: Collection[str]) -> None:
    for name in candidates:
        if name not in role.minions:
            continue
        try:
            heard = read_role(MySqlState(cluster.servers[name], cluster.meta))
        except Unavailable as error:
            raise ProtectData(
                f"minion {name} does not answer, and may hold cells that were shown; bring it back, or go on without it by naming it as given up: {error}"
            ) from error
        if heard is None or heard.epoch != role.epoch:
            raise ProtectData(f"node {name} has not heard of epoch {role.epoch} of {role.master}; it must catch up, or be given up by name, first")


def _fence(cluster: ClusterServers, role: Role) -> bool:
    try:
        make_read_only(cluster.server(role.master))
    except CellfeedError as error:
        _log.warning("cluster %s: the old master %s could not be fenced: %s", cluster.name, role.master, error)
        return False
    return True


def _chosen(cluster: ClusterServers, positions: dict[str, Gtid], to: str | None) -> str:
    if not positions:
        raise StorageUnavailable(f"cluster {cluster.name} has no minion to promote")
    most = max(positions.values(), key=lambda gtid: gtid.sequence)
    chosen = to or next(name for name in positions if positions[name].sequence == most.sequence)
    if positions[chosen].sequence < most.sequence:
        ahead = ", ".join(f"{name} is at {gtid.text}" for name, gtid in positions.items() if gtid.sequence > positions[chosen].sequence)
        raise ProtectData(f"{chosen} is at {positions[chosen].text}, but {ahead}: promoting it would lose cells")
    return chosen


def _raise(cluster: ClusterServers, role: Role) -> None:
    """One transaction on the new master: the epoch of every shard, where it begins, and the role."""
    if role.epoch > _EPOCH_MAX:
        raise ProtectData(f"leader epoch {role.epoch} does not fit Kafka's 32 bits")
    server = cluster.server(role.master)
    stop_following(server)
    with server.connection() as connection:
        [(revision,)] = query(connection, f"SELECT revision + 1 FROM {cluster.meta}.state_revision")
        run_script(
            connection,
            [
                "BEGIN",
                f"UPDATE {cluster.meta}.shard_counter SET leader_epoch = {role.epoch}",
                f"INSERT INTO {cluster.meta}.leader_epoch (shard, leader_epoch, first_added_id) "
                f"SELECT shard, {role.epoch}, next_added_id FROM {cluster.meta}.shard_counter",
                f"UPDATE {cluster.meta}.state_revision SET revision = {int(revision)}",
                f"REPLACE INTO {cluster.meta}.state_entry (entry_key, value, version) "
                f"VALUES ('{ROLE_KEY}', X'{msgspec.json.encode(role).hex()}', {int(revision)})",
                "COMMIT",
            ],
        )


def _open(cluster: ClusterServers, role: Role) -> None:
    master = cluster.server(role.master)
    set_semi_sync(master, master=True, wanted=role.semi_sync)
    for name in role.minions:
        set_semi_sync(cluster.server(name), master=False, wanted=role.semi_sync)
        follow(cluster.server(name), master)
    failpoint("promote.after_repoint")
    open_for_writes(master)
    failpoint("promote.after_open")
    _log.info("cluster %s: %s is master in epoch %d, from %s on", cluster.name, role.master, role.epoch, position(master).text)
