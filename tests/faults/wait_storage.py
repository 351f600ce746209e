"""A cluster of three MariaDB servers under a fault run on waits, whose masters are killed and
replaced."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from cellfeed.assembly.clusters import cluster_servers
from cellfeed.config.model import ClusterConfig, Config, DatastoreConfig, NodeConfig
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import come_back, heard_epoch
from cellfeed.store.datastore import Datastore
from tests.faults.cluster_system import put_again
from tests.faults.system import SHARDS
from tests.faults.trigger_system import until
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import bare_servers

CLUSTER: Final = "a"


class WaitStorage:
    """``servers`` by node."""

    def __init__(self, servers: dict[str, MariaDB]) -> None:
        nodes = [NodeConfig(name, each.url) for name, each in servers.items()]
        self.servers = servers
        self.config = DatastoreConfig(shards=SHARDS, clusters=[ClusterConfig(CLUSTER, nodes)])
        self.admin: ClusterServers = cluster_servers(Config(datastore=self.config), CLUSTER)
        init_cluster(self.admin, even_map(self.config.name, SHARDS, [CLUSTER]))

    def fail_over(self, datastore: Datastore, chance: random.Random) -> str:
        """Kills the master, promotes a minion, and has the old one back as a minion."""
        role, _ = cluster_role(self.admin)
        old = self.servers[role.master]
        old.kill()
        time.sleep(chance.uniform(0.0, 1.0))
        done = promote(self.admin)
        time.sleep(chance.uniform(0.0, 1.0))
        old.start()
        if (beyond := come_back(self.admin, role.master)) is not None:
            put_again(datastore, beyond)
            clone(self.admin, role.master, listed=beyond)
        # A node that has not heard of this promotion could not be promoted in the next one.
        until(
            lambda: heard_epoch(self.admin, role.master) == done.epoch,
            f"{role.master} has heard of epoch {done.epoch}",
        )
        return f"{role.master} killed, {done.master} promoted in epoch {done.epoch}"


@contextmanager
def wait_storage() -> Iterator[WaitStorage]:
    """Gone at the end."""
    with bare_servers(3) as servers:
        names = [f"{CLUSTER}{number}" for number in (1, 2, 3)]
        storage = WaitStorage(dict(zip(names, servers, strict=True)))
        with closing(storage.admin):
            yield storage
