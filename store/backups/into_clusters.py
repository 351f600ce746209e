"""Restores into clusters of MariaDB servers: bare ones, or such as were made and have never had a
cell.

A cluster under restore has no role, so no program opens it, and a mark
(:mod:`cellfeed.store.backups.into_mysql`) that says which backup it is to become. Steps, and the
state after a kill in each:

    0. check     every cluster, before anything is changed on one: a restore that is refused leaves
                 all of them as they are.
    1. prepare   every cluster: minions follow, schema, shard map; the role of one that was made
                 goes. Run again: it continues.
    2. load      cells in the order of their ids, shard by shard. Run again: it continues where the
                 counters say.
    3. complete  notes, counters, epochs, columns, state. Run again: it is done again.
    4. read back, by the caller.
    5. wait      until every minion has all that the master has: one that was promoted earlier would
                 have lost cells that were backed up.
    6. open      one cluster after the other gets its role; all of them are whole and verified
                 before the first does. The next run leaves a cluster that has its role as it is,
                 and does not read it back: puts, trims, erasures and promotions since then stay.
                 Its shards are its own, so the clusters that the next run opens need none of
                 these changes.

A shard may lie in another cluster than it did, and the number of clusters may be another one: the
map is the configuration's, or the backup's where that fits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.cluster_restore import (
    ClustersReader,
    check_shards,
    is_of,
    mark_and_role,
    not_erased,
    refuse_other_runs,
    role_under,
)
from cellfeed.store.backups.into_mysql import MySqlRestore
from cellfeed.store.backups.restore_plan import Plan
from cellfeed.store.backups.restore_target import LogReader
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.clusters.model.restore_mark import Mark
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import ShardMap, write_map
from cellfeed.store.clusters.operating.bare_servers import check_servers
from cellfeed.store.clusters.operating.catch_up import wait_for_minions
from cellfeed.store.clusters.operating.create import prepare_cluster
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.operation_locks import promotion_lock
from cellfeed.store.engines.mysql.semi_sync import set_semi_sync
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import History

declare("cluster.restore.between_clusters", "cluster.restore.between_roles")

_log: Final = logging.getLogger("cellfeed.restore")


class ClusterTarget:
    """:class:`cellfeed.store.backups.restore_target.Target`. Use as a context: it holds the locks
    and closes the servers."""

    def __init__(self, clusters: Sequence[ClusterServers], shard_map: ShardMap) -> None:
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._map = shard_map
        self._cluster_of = shard_map.by_shard()
        self._marks: dict[str, Mark] = {}
        self._restores: dict[str, MySqlRestore] = {}
        self._loaded: dict[int, int] = {}
        self._locks = ExitStack()

    def __enter__(self) -> ClusterTarget:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._locks.close()
        for cluster in self._clusters.values():
            cluster.close()

    def begun_epoch(self, backup: Backup) -> int | None:
        return next((mark.role.epoch for mark in self._begun(backup)), None)

    def begun_history(self, backup: Backup) -> str:
        histories = (mark.role.history_id for mark in self._begun(backup))
        return next(filter(None, histories), "")

    def _begun(self, backup: Backup) -> Iterator[Mark]:
        for cluster in self._clusters.values():
            mark, _ = mark_and_role(cluster)
            if mark is not None and is_of(mark, backup):
                yield mark

    def begin(self, plan: Plan) -> None:
        for cluster in self._clusters.values():
            first = next(iter(cluster.servers.values()))
            self._locks.enter_context(promotion_lock([first], cluster.name))
        found = {name: mark_and_role(cluster) for name, cluster in self._clusters.items()}
        # A run that continues another one restores into the same history.
        begun = [
            mark.role.history_id
            for mark, _ in found.values()
            if mark is not None and is_of(mark, plan.backup) and mark.role.history_id
        ]
        history_id = begun[0] if begun else self._map.history_id
        self._map = self._map.of_history(
            History(history_id, plan.parent.history_id, plan.parent.origin_id or history_id)
        )
        refuse_other_runs([mark for mark, _ in found.values()], plan)
        wanted = {
            name: self._checked(cluster, *found[name], plan)
            for name, cluster in self._clusters.items()
        }
        for name, cluster in self._clusters.items():
            mark, role = found[name]
            terms = role.own_terms if role is not None and mark is None else None
            self._marks[name] = self._begin(
                cluster, wanted[name], terms, is_bare=mark is None and role is None
            )
            failpoint("cluster.restore.between_clusters")
        for name, restore in self._restores.items():
            if not self._marks[name].done:
                restore.dictionaries(plan.dictionaries, plan.turns)
                self._loaded.update(restore.loaded())

    def _checked(
        self, cluster: ClusterServers, mark: Mark | None, role: Role | None, plan: Plan
    ) -> Mark:
        """The mark that the cluster gets. Changes nothing. Raises ProtectData for a cluster that
        cannot be restored into."""
        backup = plan.backup
        if mark is None and role is None:
            check_servers(cluster)
            first, *minions = cluster.servers
            role = Role(
                cluster.name, first, plan.epoch, minions, cluster.semi_sync and bool(minions)
            )
            return Mark(
                backup.name, backup.sha256, role_under(role, plan.epoch, self._map.history_id)
            )
        if mark is not None and mark.done and is_of(mark, plan.backup):
            return mark
        wanted = Mark(
            backup.name,
            backup.sha256,
            role_under(mark.role if mark is not None else role, plan.epoch, self._map.history_id),
        )
        restore = self._restore_into(cluster, wanted)
        restore.check(wanted)
        check_shards(cluster, restore, self._map)
        return wanted

    def _restore_into(self, cluster: ClusterServers, mark: Mark) -> MySqlRestore:
        return MySqlRestore(
            cluster.server(mark.role.master), Layout(cluster.datastore, cluster.shards)
        )

    def _begin(
        self, cluster: ClusterServers, wanted: Mark, terms: WriteTerms | None, *, is_bare: bool
    ) -> Mark:
        if is_bare:
            prepare_cluster(cluster, self._map)
        master = cluster.server(wanted.role.master)
        self._restores[cluster.name] = restore = self._restore_into(cluster, wanted)
        if wanted.done:
            return wanted
        restore.begin(wanted, terms)
        # Nothing is acknowledged before the end, when all minions have all of it.
        set_semi_sync(master, master=True, wanted=False)
        write_map({cluster.name: MySqlState(master, cluster.meta)}, self._map)
        check_shards(cluster, restore, self._map)
        return wanted

    def loaded(self, shard: int) -> int:
        return self._loaded[shard]

    def is_open(self, shard: int) -> bool:
        return self._marks[self._cluster_of[shard]].done

    def not_erased(self, plan: Plan) -> list[bytes]:
        left = list[bytes]()
        for name, cluster in self._clusters.items():
            rows = [
                cell.row_key
                for log in plan.logs.values()
                if self._cluster_of[log.shard] == name
                for cell in log.erased
            ]
            if rows and self._marks[name].done:
                left += not_erased(cluster, rows)
        return left

    def load(self, shard: int, cells: Sequence[StoredCell]) -> None:
        self._restores[self._cluster_of[shard]].load(shard, cells)

    def complete(self, plan: Plan) -> None:
        first = next(iter(self._clusters))
        for name, restore in self._restores.items():
            if not self._marks[name].done:
                logs = [log for log in plan.logs.values() if self._cluster_of[log.shard] == name]
                restore.complete(
                    logs, plan.columns, plan.state if name == first else [], plan.state_revision
                )

    @contextmanager
    def reader(self) -> Iterator[LogReader]:
        with ExitStack() as opened:
            engines = {}
            for name, cluster in self._clusters.items():
                if self._marks[name].done:
                    continue
                address = cluster.server(self._marks[name].role.master).address
                engines[name] = MySqlEngine(MySqlServer(address), cluster.datastore, cluster.shards)
                opened.callback(engines[name].close)
            yield ClustersReader(engines, self._cluster_of)

    def open(self) -> None:
        left = {name: mark for name, mark in self._marks.items() if not mark.done}
        for name, mark in left.items():
            otherwise = "the restore is done but for that: run it again when the minion is mended"
            wait_for_minions(self._clusters[name], mark.role.master, mark.role.minions, otherwise)
        for name, mark in left.items():
            set_semi_sync(
                self._clusters[name].server(mark.role.master),
                master=True,
                wanted=mark.role.semi_sync,
            )
            self._restores[name].open(mark)
            _log.info(
                "cluster %s is restored from backup %s: %s is master in epoch %d",
                name,
                mark.backup,
                mark.role.master,
                mark.role.epoch,
            )
            failpoint("cluster.restore.between_roles")
