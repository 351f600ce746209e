"""Gateways under faults: killed, paused past their session, stopped in order one after the other,
left without their ZooKeeper; and all the time asked by members that come and go.

Each fault ends with the moment at which it healed (monotonic seconds) and the proof that it
happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from cellfeed.bridge.gateway.groups.spread import slot_of
from tests.faults.gateway_system import GROUP, SESSION_S, GatewaySystem
from tests.faults.group_churn import GroupChurn
from tests.faults.trigger_system import FaultDidNotHappen, until

MOVED_MAX_S = 2 * SESSION_S + 10.0
"""I21 while a gateway is gone: its session (longer in ZooKeeper), and ten seconds."""

_CHURN_S = 900.0
"""For a part of the joins and leaves: each may wait for a rebalance, and a rebalance for a gateway
that died."""

_FOUND_S = 180.0
"""Until the gateways are a cluster again after one was killed or ZooKeeper was away, on a machine
that is busy with their clients."""


class Scale(NamedTuple):
    """``faults`` in a run; ``away_s``: how long ZooKeeper is away; ``turns``: joins and leaves;
    ``put_every_s``: every process reads each cell, so in the suite they come less often."""

    faults: int
    away_s: float
    turns: int
    put_every_s: float


FULL = Scale(faults=5, away_s=60.0, turns=200, put_every_s=0.004)
BRIEF = Scale(faults=1, away_s=9.0, turns=12, put_every_s=0.012)


class Healed(NamedTuple):
    at_s: float
    witness: str
    violations: list[str]


def _kill(system: GatewaySystem, chance: Random, scale: Scale) -> Healed:
    """kill -9 of the gateway that coordinates the group. The others continue with the group while
    it is gone."""
    del scale
    name = system.coordinator_of_group()
    gateway = system.gateways[name]
    pid, killed_s = gateway.process.pid, time.monotonic()
    gateway.kill()
    moved_s = system.going_again_s(killed_s, MOVED_MAX_S)
    slow = (
        [f"{moved_s:.1f} s after {name} was killed the group did not continue elsewhere"]
        if moved_s >= MOVED_MAX_S
        else []
    )
    taken_by = system.coordinator_of_group()
    time.sleep(chance.uniform(0, 0.5))
    gateway.start()
    healed_s = time.monotonic()
    if taken_by == name or gateway.process.pid == pid:
        raise FaultDidNotHappen(f"{name} is as it was")
    until(lambda: system.is_settled(), "the gateway that is back has its share")
    return Healed(
        healed_s,
        f"{name} ({pid}) killed, the group went on at {taken_by} {moved_s:.1f} s later",
        slow,
    )


def _pause(system: GatewaySystem, chance: Random, scale: Scale) -> Healed:
    """SIGSTOP of the group's coordinator until another one has the group and it continues there;
    then it wakes up, believing in its old state."""
    del scale
    name = system.coordinator_of_group()
    with system.paused(name):
        stopped_s = time.monotonic()
        until(
            lambda: any(
                slot_of(GROUP) in slots for other, slots in system.slots().items() if other != name
            ),
            "the paused gateway's groups are another's",
        )
        moved_s = system.going_again_s(stopped_s, MOVED_MAX_S)
        taken_by = system.coordinator_of_group()
        time.sleep(chance.uniform(0, 1))
    healed_s = time.monotonic()
    slow = (
        [f"{moved_s:.1f} s after {name} was paused the group did not continue elsewhere"]
        if moved_s >= MOVED_MAX_S
        else []
    )
    until(lambda: system.is_settled(), "the gateway that woke up has its share")
    return Healed(
        healed_s,
        f"{name} paused for {healed_s - stopped_s:.1f} s, the group went on at {taken_by} after"
        f" {moved_s:.1f} s",
        slow,
    )


def _others_have_all(system: GatewaySystem, name: str) -> bool:
    slots = system.slots()
    return name not in slots and sum(map(len, slots.values())) == 50


def _has_turned(churn: GroupChurn, turns: int) -> bool:
    return churn.turns >= turns or not churn.is_alive()


def _stop(system: GatewaySystem, chance: Random, scale: Scale) -> Healed:
    """SIGTERM of one gateway after the other, each started again: a rolling restart."""
    del chance, scale
    pids = []
    for name, gateway in system.gateways.items():
        pid = gateway.process.pid
        gateway.stop()
        if gateway.returncode != 0:
            raise FaultDidNotHappen(f"{name} ended with {gateway.returncode}")
        until(partial(_others_have_all, system, name), "the others have all groups", SESSION_S * 4)
        gateway.start()
        until(lambda: system.is_settled(), "the gateway that is back has its share")
        pids.append(f"{name} {pid} → {gateway.process.pid}")
    return Healed(time.monotonic(), f"restarted in turn: {', '.join(pids)}", [])


def _zookeeper(system: GatewaySystem, chance: Random, scale: Scale) -> Healed:
    """kill -9 of ZooKeeper; the group's members read on, and their commits meanwhile are refused or
    wait."""
    del chance
    zookeeper = system.zookeeper
    if zookeeper is None or zookeeper.process is None:
        raise FaultDidNotHappen("no ZooKeeper runs")
    pid = zookeeper.process.pid
    zookeeper.kill()
    killed_s = time.monotonic()
    # Records that were acknowledged and read just before the kill do not count.
    time.sleep(1.0)
    acknowledged, resumed = system.group.total_acknowledged(), len(system.listeners.resumed)
    # Beyond the member's own session: it lives because its heartbeats are answered.
    time.sleep(max(scale.away_s - 2.0, 0))
    heads = system.heads()
    time.sleep(2.0)
    read = {shard: cells[-1].added_id for shard, cells in system.reader.read.items() if cells}
    stuck = [
        f"partition {shard}: nobody read on while ZooKeeper was away"
        for shard, head in heads.items()
        if read.get(shard, -1) < head - 1
    ]
    with system.listeners.lock:
        handled = {
            shard: max(offsets, default=0) for shard, offsets in system.listeners.handled.items()
        }
    stuck += [
        f"partition {shard}: the group did not read on while ZooKeeper was away"
        for shard, head in heads.items()
        if handled.get(shard, -1) < head - 1
    ]
    if len(system.listeners.resumed) != resumed:
        stuck.append("a member that only reads lost its place while ZooKeeper was away")
    if system.group.total_acknowledged() != acknowledged:
        stuck.append("commits were acknowledged without a ZooKeeper to keep them")
    zookeeper.start()
    healed_s = time.monotonic()
    return Healed(healed_s, f"ZooKeeper ({pid}) away for {healed_s - killed_s:.1f} s", stuck)


def _churn(system: GatewaySystem, chance: Random, scale: Scale) -> Healed:
    """Members of three clients join and leave while one coordinator after the other is killed and
    started again, and ZooKeeper is away in between."""
    churn = GroupChurn(system.bootstrap, "trips", GROUP, system.group, chance, scale.turns)
    churn.start()
    try:
        said = []
        for number in range(scale.faults + 1):
            turns = scale.turns * (number + 1) // (scale.faults + 2)
            until(partial(_has_turned, churn, turns), "members come and go", _CHURN_S)
            said.append(
                _zookeeper_away(system, scale.away_s)
                if number == scale.faults // 2
                else _coordinator_killed(system, chance)
            )
        until(lambda: not churn.is_alive(), "all have come and gone", _CHURN_S)
    finally:
        churn.stop()
    if churn.turns < scale.turns or 2 * churn.given < churn.joins.total():
        raise FaultDidNotHappen(
            f"{churn.turns} joins and leaves, {churn.given} of {churn.joins.total()} were given"
            " partitions"
        )
    healed_s = time.monotonic()
    members = ", ".join(f"{count} of {client}" for client, count in sorted(churn.joins.items()))
    return Healed(
        healed_s,
        f"{churn.joins.total()} joins ({members}; {churn.given} given partitions), {churn.leaves}"
        f" leaves; {'; '.join(said)}",
        [],
    )


def _coordinator_killed(system: GatewaySystem, chance: Random) -> str:
    name = system.coordinator_of_group()
    gateway = system.gateways[name]
    pid = gateway.process.pid
    gateway.kill()
    until(
        lambda: any(
            slot_of(GROUP) in slots for other, slots in system.slots().items() if other != name
        ),
        "the killed gateway's groups are another's",
        _FOUND_S,
    )
    time.sleep(chance.uniform(0, 2))
    gateway.start()
    until(lambda: system.is_settled(), "the gateway that is back has its share", _FOUND_S)
    return f"{name} ({pid}) killed"


def _zookeeper_away(system: GatewaySystem, away_s: float) -> str:
    zookeeper = system.zookeeper
    if zookeeper is None or zookeeper.process is None:
        raise FaultDidNotHappen("no ZooKeeper runs")
    pid, killed_s = zookeeper.process.pid, time.monotonic()
    zookeeper.kill()
    time.sleep(away_s)
    zookeeper.start()
    until(lambda: system.is_settled(), "the gateways have found each other again", _FOUND_S)
    return f"ZooKeeper ({pid}) away for {time.monotonic() - killed_s:.1f} s"


FAULTS: dict[str, Callable[[GatewaySystem, Random, Scale], Healed]] = {
    "gateways-kill": _kill,
    "gateways-pause": _pause,
    "gateways-stop": _stop,
    "gateways-zookeeper": _zookeeper,
    "gateways-churn": _churn,
}
NEED_ZOOKEEPER = frozenset({"gateways-zookeeper", "gateways-churn"})
"""Kinds that need one of their own, to be killed. The others use one with even seeds, three
gateways instead of two with it, and the store with odd ones."""
