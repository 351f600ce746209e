"""What happens to moves of shards in a fault run: the mover is killed (kill -9) at a failpoint, a master dies at one, and the supervisors promote. After each
the move is gone on with, or taken back, and the next one goes the other way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from store.clusters.failover import cluster_role
from store.clusters.moves import mover
from store.clusters.moves.underway import owners, underway
from store.datastore import Datastore
from store.errors import CellfeedError
from store.failpoints import FAILPOINTS, unwatch_failpoint, watch_failpoint
from tests.faults.cluster_system import ClusterSystem

ROOT = Path(__file__).parents[2]
POINTS = tuple(sorted(point for point in FAILPOINTS if point.startswith("move.") and point not in ("move.inside_give_back", "move.inside_clean")))
MASTER_POINTS = tuple(point for point in POINTS if point not in ("move.between_maps", "move.after_map"))
"""Where a master that dies is still one of the move's."""


def shard_moves(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """The mover killed, then the source's master or the target's, each at a point of its own, one move after the other; then one that nothing happens to."""
    shard = chance.randrange(4)
    side = chance.choice(["source", "target"])
    witnessed = [_mover_killed(system, datastore, chance, shard), _master_killed(system, datastore, chance, shard, side)]
    source, target = _sides(system, shard)
    done = mover.move_shard(system.admin, shard, target, datastore.engine.dictionaries.complete)
    return [*witnessed, f"shard {shard} from {source} to {target}, {done.cells} cells, fenced for {done.fence_s or 0:.2f} s"]


def _sides(system: ClusterSystem, shard: int) -> tuple[str, str]:
    """The cluster that serves the shard, and the other one."""
    source = owners(system.admin)[shard]
    return source, "b" if source == "a" else "a"


def _mover_killed(system: ClusterSystem, datastore: Datastore, chance: random.Random, shard: int) -> str:
    source, target = _sides(system, shard)
    point = chance.choice(POINTS)
    clusters = {name: {node: system.url(node) for node in cluster.servers} for name, cluster in system.admin.items()}
    died = subprocess.run(
        [sys.executable, "-m", "tests.faults.mover_process", json.dumps(clusters), str(shard), target],
        cwd=ROOT,
        env={**os.environ, "CELLFEED_FAILPOINTS": f"{point}=kill"},
        timeout=120,
        check=False,
    )
    if died.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the mover ended with {died.returncode} and was not killed at {point}: the fault did not happen")
    [found] = [each for each in underway(system.admin) if each.shard == shard]
    if found.stage in ("copying", "fenced") and chance.random() < 0.5:
        mover.roll_back(system.admin, shard)
        return f"the mover of shard {shard} killed at {point} ({found.stage}), taken back to {source}"
    mover.move_shard(system.admin, shard, target, datastore.engine.dictionaries.complete)
    return f"the mover of shard {shard} killed at {point} ({found.stage}), gone on with to {target}"


def _master_killed(system: ClusterSystem, datastore: Datastore, chance: random.Random, shard: int, side: str) -> str:
    source, target = _sides(system, shard)
    name = source if side == "source" else target
    role, _ = cluster_role(system.admin[name])
    point = chance.choice(MASTER_POINTS)
    died = threading.Event()
    before = len(system.promoted)

    def kill() -> None:
        if not died.is_set():
            system.servers[role.master].kill()
            died.set()

    watch_failpoint(point, kill)
    try:
        mover.move_shard(system.admin, shard, target, datastore.engine.dictionaries.complete)
    finally:
        unwatch_failpoint(point)
    if not died.is_set():
        raise RuntimeError(f"{role.master} was not killed at {point}: the fault did not happen")
    _until(lambda: len(system.promoted) > before, f"the supervisor promotes a minion of {name}")
    system.servers[role.master].start()
    _until(lambda: _has_two_minions(system, name), f"{role.master} is back")
    return f"{role.master}, master of the {side}, killed at {point} of the move of shard {shard} to {target}; {system.promoted[-1].master} promoted"


def _has_two_minions(system: ClusterSystem, name: str) -> bool:
    try:
        role, silent = cluster_role(system.admin[name])
    except CellfeedError:
        return False
    return len(role.minions) == 2 and not silent


def _until(done: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 90
    while not done():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within 90 s: {what}")
        time.sleep(0.05)
