"""A mover as a process of its own, to be killed: ``python -m tests.faults.mover_process CLUSTERS_JSON SHARD CLUSTER``, with clusters as name to node name to
URL. Where it dies is told by CELLFEED_FAILPOINTS."""

from __future__ import annotations

import json
import sys

from store.clusters.moves.mover import move_shard
from store.clusters.storage import ClusterServers
from store.engines.mysql_connections import MySqlServer
from tests.faults.cluster_system import DATASTORE, SHARDS


def main() -> None:
    clusters, shard, to = sys.argv[1:]
    made = {
        name: ClusterServers(name, DATASTORE, SHARDS, {node: MySqlServer(url) for node, url in nodes.items()}) for name, nodes in json.loads(clusters).items()
    }
    move_shard(made, int(shard), to, lambda: None)


if __name__ == "__main__":
    main()
