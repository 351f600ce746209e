"""The new master in a promotion: it gets the next epoch, its minions follow it, and it takes
writes."""

from __future__ import annotations

import logging
import time
from typing import Final

import msgspec

from cellfeed.store.clusters.model.roles import TAKEOVER_S, Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.contract.state_limits import revision_of_next_history
from cellfeed.store.engines.mysql.guard_sql import ROLE_KEY
from cellfeed.store.engines.mysql.read_only import open_for_writes
from cellfeed.store.engines.mysql.replication import follow, position, stop_following
from cellfeed.store.engines.mysql.semi_sync import set_semi_sync
from cellfeed.store.engines.mysql.statements import query, run_script
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import declare, failpoint, marked

_log = logging.getLogger("cellfeed.failover")

declare("promote.after_repoint", "promote.after_open")

_EPOCH_MAX: Final = (1 << 31) - 1


@marked("role.raise")
def raise_epoch(cluster: ClusterServers, role: Role) -> None:
    """One transaction on the new master: the epoch of every shard, where it begins, and the
    role."""
    if role.epoch > _EPOCH_MAX:
        raise ProtectData(f"leader epoch {role.epoch} does not fit Kafka's 32 bits")
    server = cluster.server(role.master)
    stop_following(server)
    with server.connection() as connection:
        [(last,)] = query(connection, f"SELECT revision FROM {cluster.meta}.state_revision")
        revision = revision_of_next_history(int(last))
        run_script(
            connection,
            [
                "BEGIN",
                f"UPDATE {cluster.meta}.shard_counter SET leader_epoch = {role.epoch}",
                (
                    f"INSERT INTO {cluster.meta}.leader_epoch (shard, leader_epoch, first_added_id)"
                    f" SELECT shard, {role.epoch} + epoch_base, next_added_id FROM"
                    f" {cluster.meta}.shard_counter"
                ),
                f"UPDATE {cluster.meta}.state_revision SET revision = {revision}",
                (
                    f"REPLACE INTO {cluster.meta}.state_entry (entry_key, value, version) VALUES"
                    f" ('{ROLE_KEY}', X'{msgspec.json.encode(role).hex()}', {revision})"
                ),
                "COMMIT",
            ],
        )


def open_master(cluster: ClusterServers, role: Role) -> None:
    """Points the minions to the new master, which takes writes afterwards. The role was written
    before the call; readers have ``TAKEOVER_S`` to learn of it."""
    readable_since_s = time.monotonic()
    master = cluster.server(role.master)
    set_semi_sync(master, master=True, wanted=role.semi_sync)
    for name in role.minions:
        set_semi_sync(cluster.server(name), master=False, wanted=role.semi_sync)
        follow(cluster.server(name), master)
    failpoint("promote.after_repoint")
    time.sleep(max(0.0, readable_since_s + TAKEOVER_S - time.monotonic()))
    open_for_writes(master)
    failpoint("promote.after_open")
    _log.info(
        "cluster %s: %s is master in epoch %d, from %s on",
        cluster.name,
        role.master,
        role.epoch,
        position(master).text,
    )
