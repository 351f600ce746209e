"""A mover as a process of its own, to be killed: ``python -m tests.faults.mover_process ACTION
CLUSTERS_JSON SHARDS SHARD CLUSTER``, with clusters as name to node name to URL. ACTION is move (to
the cluster), rollback, clean, or heal: a healer that has no patience, and looks until it is killed.
Where it dies is reported by CELLFEED_FAILPOINTS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.moves import heal, healer, waiting
from cellfeed.store.clusters.moves.mover import clean, move_shard, roll_back
from cellfeed.store.engines.mysql.connections import MySqlServer
from tests.support.mariadb_cluster import BUSY_FENCE_MAX_S

ROOT = Path(__file__).parents[2]
DATASTORE = "trips"


def kill_mover_at(
    point: str,
    clusters: Mapping[str, Mapping[str, str]],
    shards: int,
    shard: int,
    to: str,
    action: str = "move",
) -> int:
    """Moves a shard, or runs the given action, in a process that is killed (kill -9) at the
    failpoint; returns its pid. Raises RuntimeError when it was not."""
    arguments = [
        action,
        json.dumps({name: dict(nodes) for name, nodes in clusters.items()}),
        str(shards),
        str(shard),
        to,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.mover_process", *arguments],
        cwd=ROOT,
        env={**os.environ, "CELLFEED_FAILPOINTS": f"{point}=kill"},
    )
    code = process.wait(120)
    if code != -signal.SIGKILL:
        raise RuntimeError(
            f"the mover ended with {code} and was not killed at {point}: the fault did not happen"
        )
    return process.pid


def main() -> None:
    waiting.FENCE_MAX_S = BUSY_FENCE_MAX_S  # type: ignore[misc]
    action, clusters, shards, shard, to = sys.argv[1:]
    made = {
        name: ClusterServers(
            name, DATASTORE, int(shards), {node: MySqlServer(url) for node, url in nodes.items()}
        )
        for name, nodes in json.loads(clusters).items()
    }
    if action == "move":
        move_shard(made, int(shard), to, lambda: None)
    elif action == "rollback":
        roll_back(made, int(shard))
    elif action == "heal":
        healer.LOOK_EVERY_S, healer.HEAL_AFTER_S, heal.SILENT_MAX_S = 0.1, 0.0, 0.2  # type: ignore[misc]
        healer.MoveHealer(made).run(threading.Event())
    else:
        clean(made, int(shard), lambda: None)


if __name__ == "__main__":
    main()
