"""Faults of moves of shards in a fault run, while supervisors promote and a healer looks after
moves. After each the move is gone on with, or taken back, and the next one goes the other way.

shard-moves                a mover killed (kill -9), then a master, each at a failpoint that the
                           seed chooses
shard-moves-mover-killed   the mover, a process, killed at every failpoint; the shards unserved then
                           must be served again before anybody does anything
shard-moves-master-killed  the source's master, and the target's, killed at every failpoint
shard-moves-back-killed    the process that takes a move back, or cleans, and both masters, killed
                           at every failpoint of that
shard-moves-promoted       another node promoted at every failpoint while the master is well, on the
                           source or the target, by turns
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.moves.underway import owners, underway
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import come_back, is_prefix
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, ProtectData, Unavailable
from cellfeed.store.failpoints import FAILPOINTS, unwatch_failpoint, watch_failpoint
from tests.faults.cluster_system import SHARDS, ClusterSystem, put_again
from tests.faults.mover_process import kill_mover_at

POINTS = tuple(
    sorted(
        point
        for point in FAILPOINTS
        if point.startswith("move.") and point not in ("move.inside_give_back", "move.inside_clean")
    )
)
BACK_POINTS = ("move.inside_give_back", "rollback.inside_abandon", "rollback.before_unmark")
"""Of taking a move back."""
CLEAN_POINT = "move.inside_clean"
SIDES = ("source", "target")
MASTER_POINTS = tuple(
    point for point in POINTS if point not in ("move.between_maps", "move.after_map")
)
"""Where a master that dies is still one of the move's."""


def shard_moves(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """The mover killed, then the source's master or the target's, each at a point of its own, one
    move after the other; then one that nothing happens to."""
    shard = chance.randrange(SHARDS)
    witnessed = [
        _mover_killed(system, datastore, shard, chance.choice(POINTS), back=chance.random() < 0.5),
        _master_killed(
            system,
            datastore,
            shard,
            chance.choice(MASTER_POINTS),
            chance.choice(["source", "target"]),
        ),
    ]
    return [*witnessed, _undisturbed(system, datastore, shard)]


def mover_killed(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """At every failpoint, and the shard is served again by itself."""
    shard, turn = chance.randrange(SHARDS), chance.randrange(2)
    witnessed = [
        _mover_killed(system, datastore, shard, point, back=bool((turn + number) % 2), heals=True)
        for number, point in enumerate(POINTS)
    ]
    return [*witnessed, _undisturbed(system, datastore, shard)]


def master_killed(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Of both sides, at every failpoint."""
    shard = chance.randrange(SHARDS)
    witnessed = [
        _master_killed(system, datastore, shard, point, side)
        for point in MASTER_POINTS
        for side in SIDES
    ]
    return [*witnessed, _undisturbed(system, datastore, shard)]


def back_killed(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """A process that takes a move back, or cleans, at every failpoint of that; then the masters of
    both sides."""
    shard = chance.randrange(SHARDS)
    witnessed = [_rollback_killed(system, shard, point) for point in BACK_POINTS]
    witnessed += [_undisturbed(system, datastore, shard), _clean_killed(system, datastore, shard)]
    witnessed += [
        _master_killed_in_rollback(system, datastore, shard, point, side)
        for point in BACK_POINTS
        for side in SIDES
    ]
    for side in SIDES:
        witnessed += [
            _undisturbed(system, datastore, shard),
            _master_killed_in_clean(system, datastore, shard, side),
        ]
    return witnessed


def promoted(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Of one side or the other, at every failpoint."""
    shard, turn = chance.randrange(SHARDS), chance.randrange(2)
    witnessed = [
        _promoted(system, datastore, shard, point, SIDES[(turn + number) % 2])
        for number, point in enumerate(MASTER_POINTS)
    ]
    return [*witnessed, _undisturbed(system, datastore, shard)]


def _undisturbed(system: ClusterSystem, datastore: Datastore, shard: int) -> str:
    source, target = _sides(system, shard)
    done = mover.move_shard(system.admin, shard, target, datastore.engine.dictionaries.complete)
    return (
        f"shard {shard} from {source} to {target}, {done.cells} cells, fenced for"
        f" {done.fence_s or 0:.2f} s"
    )


def _sides(system: ClusterSystem, shard: int) -> tuple[str, str]:
    """The cluster that serves the shard, and the other one."""
    source = owners(system.admin)[shard]
    return source, "b" if source == "a" else "a"


def _mover_killed(
    system: ClusterSystem,
    datastore: Datastore,
    shard: int,
    point: str,
    *,
    back: bool,
    heals: bool = False,
) -> str:
    """``back``: whether the move is taken back, where it can be. ``heals``: whether it is waited
    for the healer first."""
    source, target = _sides(system, shard)
    pid = kill_mover_at(point, _urls(system), SHARDS, shard, target)
    stage = _stage(system, shard)
    if heals and stage in ("fenced", "switched"):
        _until(
            lambda: _stage(system, shard) in ("copying", "kept"), f"shard {shard} is served again"
        )
    if stage in ("copying", "fenced") and back:
        mover.roll_back(system.admin, shard)
        return (
            f"the mover (pid {pid}) of shard {shard} killed at {point} ({stage}), taken back to"
            f" {source}"
        )
    mover.move_shard(system.admin, shard, target, datastore.engine.dictionaries.complete)
    return (
        f"the mover (pid {pid}) of shard {shard} killed at {point} ({stage}), gone on with to"
        f" {target}"
    )


def _rollback_killed(system: ClusterSystem, shard: int, point: str) -> str:
    """Behind a fence, after which the shard is served again by itself; then the copy is dropped."""
    source, target = _sides(system, shard)
    kill_mover_at("move.after_hide", _urls(system), SHARDS, shard, target)
    pid = kill_mover_at(point, _urls(system), SHARDS, shard, target, "rollback")
    stage = _stage(system, shard)  # copying where the healer was faster than the process
    _until(lambda: _stage(system, shard) == "copying", f"shard {shard} is served again")
    mover.roll_back(system.admin, shard)
    return (
        f"the rollback (pid {pid}) of shard {shard} killed at {point} ({stage}), served again by"
        f" {source}"
    )


def _clean_killed(system: ClusterSystem, datastore: Datastore, shard: int) -> str:
    [kept] = [each for each in underway(system.admin) if each.shard == shard]
    pid = kill_mover_at("move.inside_clean", _urls(system), SHARDS, shard, kept.target, "clean")
    mover.clean(system.admin, shard, datastore.engine.dictionaries.complete)
    return f"the cleaning (pid {pid}) of shard {shard} on {kept.source} killed, and done again"


def _urls(system: ClusterSystem) -> dict[str, dict[str, str]]:
    return {
        name: {node: system.url(node) for node in cluster.servers}
        for name, cluster in system.admin.items()
    }


def _stage(system: ClusterSystem, shard: int) -> str:
    [found] = [each.stage for each in underway(system.admin) if each.shard == shard]
    return found


def _master_killed(
    system: ClusterSystem, datastore: Datastore, shard: int, point: str, side: str
) -> str:
    source, target = _sides(system, shard)
    name = {"source": source, "target": target}[side]
    killed = _with_master_killed(
        system, datastore, name, point, lambda: _move(system, datastore, shard, target)
    )
    return f"{killed} of the {side} at {point} of the move of shard {shard} to {target}"


def _master_killed_in_rollback(
    system: ClusterSystem, datastore: Datastore, shard: int, point: str, side: str
) -> str:
    """Of a move whose mover has died while it copied."""
    source, target = _sides(system, shard)
    name = {"source": source, "target": target}[side]
    kill_mover_at("move.before_fence", _urls(system), SHARDS, shard, target)
    killed = _with_master_killed(
        system, datastore, name, point, lambda: mover.roll_back(system.admin, shard)
    )
    if owners(system.admin)[shard] != source or [
        each for each in underway(system.admin) if each.shard == shard and each.stage == "copying"
    ]:
        raise RuntimeError(f"shard {shard} was not taken back to {source}")
    return f"{killed} of the {side} at {point} of taking the move of shard {shard} to {target} back"


def _master_killed_in_clean(
    system: ClusterSystem, datastore: Datastore, shard: int, side: str
) -> str:
    """Which is run again until it is done, as by an operator. The sides are those of the move
    before it."""
    [kept] = [each for each in underway(system.admin) if each.shard == shard]
    name = {"source": kept.source, "target": kept.target}[side]

    def cleaned() -> bool:
        with suppress(Unavailable, ProtectData):
            if [each for each in underway(system.admin) if each.shard == shard]:
                mover.clean(system.admin, shard, datastore.engine.dictionaries.complete)
            return True
        return False

    killed = _with_master_killed(
        system, datastore, name, CLEAN_POINT, lambda: _until(cleaned, f"shard {shard} is cleaned")
    )
    return f"{killed} of the {side} at {CLEAN_POINT} of shard {shard} on {kept.source}"


def _with_master_killed(
    system: ClusterSystem, datastore: Datastore, name: str, point: str, what: Callable[[], object]
) -> str:
    """Something done to its end while a cluster's master is killed at the first pass of a
    failpoint; a minion is promoted, and the old master returns."""
    role, _ = cluster_role(system.admin[name])
    before = len(system.promoted)
    _with_fault(point, system.servers[role.master].kill, what)
    _until(lambda: len(system.promoted) > before, f"the supervisor promotes a minion of {name}")
    system.servers[role.master].start()
    _until(lambda: _is_back(system, datastore, name, role.master), f"{role.master} is back")
    return f"{role.master} killed ({system.promoted[-1].master} promoted), master"


def _promoted(
    system: ClusterSystem, datastore: Datastore, shard: int, point: str, side: str
) -> str:
    source, target = _sides(system, shard)
    name = source if side == "source" else target
    role, _ = cluster_role(system.admin[name])
    _with_fault(
        point, lambda: promote(system.admin[name]), lambda: _move(system, datastore, shard, target)
    )
    now, _ = cluster_role(system.admin[name])
    if now.epoch == role.epoch or now.master == role.master:
        raise RuntimeError(
            f"nobody was promoted in the place of {role.master}: the fault did not happen"
        )
    _until(lambda: _is_back(system, datastore, name, role.master), f"{role.master} is a minion")
    return (
        f"{now.master} of the {side} promoted at {point} of the move of shard {shard} to {target}"
    )


def _move(system: ClusterSystem, datastore: Datastore, shard: int, target: str) -> None:
    mover.move_shard(system.admin, shard, target, datastore.engine.dictionaries.complete)


def _with_fault(point: str, fault: Callable[[], object], what: Callable[[], object]) -> None:
    """Something done to its end, with a fault at the first pass of a failpoint."""
    happened = threading.Event()

    def once() -> None:
        if not happened.is_set():
            happened.set()
            fault()

    watch_failpoint(point, once)
    try:
        what()
    finally:
        unwatch_failpoint(point)
    if not happened.is_set():
        raise RuntimeError(f"{point} was not passed: the fault did not happen")


def _is_back(system: ClusterSystem, datastore: Datastore, name: str, node: str) -> bool:
    """Whether the cluster has two minions again. A master that was killed may hold a cell that no
    minion has, and that nobody was told to be stored: the supervisor leaves it to an operator, here
    acting as ``cluster rejoin --put-again`` does."""
    with suppress(CellfeedError):
        role, silent = cluster_role(system.admin[name])
        if len(role.minions) == 2 and not silent:
            return True
        if (
            node not in silent
            and node != role.master
            and not is_prefix(system.admin[name], node, role)
        ):
            beyond = come_back(system.admin[name], node)
            if beyond is not None and not beyond.nothing:
                put_again(datastore, beyond)
                clone(system.admin[name], node, listed=beyond)
    return False


def _until(done: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 90
    while not done():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within 90 s: {what}")
        time.sleep(0.05)
