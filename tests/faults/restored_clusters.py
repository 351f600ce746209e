"""A cluster that a backup was restored into, with writers, a tailer and a reader of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_clusters import ClusterTarget
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.address import parse_mysql_url
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from tests.faults.cluster_faults import until
from tests.faults.cluster_system import DATASTORE, SHARDS, DirectWriters, Tailer, seen_stored
from tests.faults.invariants import (
    Seen,
    Violations,
    check_gapless,
    check_log,
    check_reader,
    merge,
)
from tests.faults.key_readers import PATHS, KeyReader, look_at_all, reading
from tests.faults.ledger import Ledger
from tests.faults.restored import restore_into
from tests.faults.shown import Shown
from tests.support.local_mariadb import MariaDB

CLUSTER: Final = "a"
"""Of every restore the same, as are the names of nodes."""


class RestoredCluster:
    """``ledger`` has the cells of the backup, and all that its writers put. ``admin``: by cluster,
    for the steps that take a system under test."""

    def __init__(self, name: str, servers: Sequence[MariaDB], ledger: Ledger) -> None:
        self.name, self.ledger, self.shown = name, ledger, Shown()
        self.servers = {f"a{number}": each for number, each in enumerate(servers, 1)}
        self.admin = {CLUSTER: self.configured(self.urls)}
        self.writers: DirectWriters
        self.tailer: Tailer
        self.reader: KeyReader
        self.datastore: Datastore

    @property
    def urls(self) -> dict[str, str]:
        return {name: server.url for name, server in self.servers.items()}

    def configured(self, urls: dict[str, str]) -> ClusterServers:
        """The cluster with these nodes in its configuration."""
        nodes = {name: MySqlServer(url) for name, url in urls.items()}
        return ClusterServers(CLUSTER, DATASTORE, SHARDS, nodes, semi_sync=True)

    def restore(self, folder: BackupFolder, backup: Backup) -> None:
        divided = even_map(DATASTORE, SHARDS, [CLUSTER])
        with ClusterTarget([self.configured(self.urls)], divided) as target:
            restore_into(target, folder, backup)

    def engine(self) -> ClusteredEngine:
        """The connections of one process."""
        nodes = {name: partial(_open, url) for name, url in self.urls.items()}
        return ClusteredEngine(DATASTORE, SHARDS, {CLUSTER: nodes})

    def role(self) -> Role:
        return cluster_role(self.admin[CLUSTER])[0]

    @contextmanager
    def at_work(self, chance: random.Random, says: int) -> Iterator[None]:
        """Writers whose bodies have ``says``, a tailer, and a reader by key."""
        with ExitStack() as stack:
            self.datastore = stack.enter_context(Datastore(self.engine()))
            pause_s = chance.choice([0.002, 0.03])
            self.writers = DirectWriters(
                [self.datastore], self.ledger, 2, pause_s=pause_s, more={"says": says}
            )
            stack.callback(self.writers.stop)
            self.tailer = Tailer(self.engine())
            stack.callback(self.tailer.engine.close)
            stack.callback(self.tailer.stop)
            self.reader = KeyReader(
                f"the reader of {self.name}",
                self.datastore,
                self.ledger,
                self.shown,
                random.Random(chance.random()),
            )
            with reading(self.reader):
                yield

    def violations(self) -> Violations:
        """I1 to I8, I12 and I13, once nobody writes any more."""
        role = self.role()
        log = self._log_of(role.master)
        look_at_all(self.reader)
        end = sum(map(len, log.values()))
        until(lambda: self.tailer.at() == end, f"the tailer of {self.name} has come to the end")
        for name in role.minions:
            until(
                lambda name=name: self._log_of(name) == log,  # type: ignore[misc]
                f"{name} of {self.name} is a copy of its master (I13)",
            )
        self.shown.answers(self.ledger)
        self.shown.log("the log in the end", log)
        self.shown.log("the tailer", self.tailer.read)
        told = merge(
            check_log(self.ledger, log),
            check_gapless(log),
            check_reader(log, self.tailer.read, "the tailer"),
            self.reader.violations(),
            self.shown.violations(self.ledger, ("BASE",), PATHS),
            {"errors": [*self.writers.errors, *self.tailer.errors]},
        )
        return {
            invariant: [f"{self.name}: {each}" for each in found]
            for invariant, found in told.items()
        }

    def _log_of(self, node: str) -> dict[int, list[Seen]]:
        """Past every watermark, straight from the server."""
        with closing(_open(self.servers[node].url, 15.0)) as engine:
            return {
                shard: [seen_stored(cell) for cell in engine.scan(shard, 0, 1_000_000)]
                for shard in range(SHARDS)
            }


def _open(url: str, timeout_s: float) -> MySqlEngine:
    return MySqlEngine(MySqlServer(parse_mysql_url(url), timeout_s), DATASTORE, SHARDS)
