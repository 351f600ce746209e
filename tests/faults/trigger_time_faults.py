"""Faults of a trigger group whose coordination, or whose clocks, are of another time.

zookeeper-rollback  a host is paused or killed and its shards change hands; then ZooKeeper returns
with its data directory of before. All stand still until
                    ``cellfeed offsets set billing kept``; the paused worker wakes up meanwhile
clock-steps         coordination in the store; a host's clock is an hour ahead or behind, steps
under it, and is wrong when the host is killed: the others take
                    its shards over within its lease
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cellfeed.bridge.coordination.store_keys import lease_key
from cellfeed.bridge.coordination.store_leases import _lease
from cellfeed.consumers.billing.charge_keys import GROUP
from cellfeed.store.errors import CellfeedError
from tests.faults.trigger_faults import Stage, nothing_runs
from tests.faults.trigger_system import FaultDidNotHappen, TriggerSystem, until
from tests.support.stopping import stop_outside_a_commit

HOUR_S: Final = 3600.0
_NOTICED_S: Final = 5.0
"""Besides its lease: how much later a dead member's shards are all others' on a busy machine."""


def _zookeeper_rollback(stage: Stage) -> list[str]:
    system, host = stage.system, stage.host()
    copy = system.directory / f"zookeeper-copy-{time.monotonic_ns()}"
    system.zookeeper.copy(copy)
    then = _offsets(system)
    until(
        lambda: system.is_settled(len(system.hosts)),
        "the group works on after ZooKeeper was stopped for a copy",
    )
    worker, member, _ = stage.at_work(host)
    stage.afflicted.add(worker.pid)
    paused = stage.chance.random() < 0.5
    if paused:
        stop_outside_a_commit(worker)
    else:
        stage.afflicted.update(host.kill())
    try:
        until(lambda: stage.taken_over(member), "the others have its shards")
        until(
            lambda: sum(_offsets(system).values()) > sum(then.values()), "the offsets have moved on"
        )
        before = _offsets(system)
        logs = {each: len(each.log.read_text()) for each in system.hosts}
        system.zookeeper.kill()
        system.zookeeper.go_back(copy)
        since_ns = time.monotonic_ns()
        system.zookeeper.start()
        restored = _offsets(system)
        fell = {
            shard: (before[shard], offset)
            for shard, offset in restored.items()
            if offset < before[shard]
        }
        if not fell:
            raise FaultDidNotHappen(f"no offset fell: {before}, then {restored}")
    finally:
        if paused:
            worker.resume()
    if not paused:
        host.start()
    until(
        lambda: all("stands still" in each.log.read_text()[size:] for each, size in logs.items()),
        "all say that they stand still",
    )
    until(lambda: nothing_runs(stage), "the last cells under way have ended")
    ended = stage.calls.ended()
    time.sleep(2 * system.lease_s)
    if ran := stage.calls.ended() - ended:
        stage.violations.append(f"{ran} cells were run while nobody knew where the work continues")
    if (now := _offsets(system)) != restored:
        stage.violations.append(
            f"offsets moved while nobody knew where the work continues: {restored}, then {now}"
        )
    reason = system.ask("triggers", "lag", GROUP)["waits_because"] or ""
    if "went back in time" not in reason or f"cellfeed offsets set {GROUP} kept" not in reason:
        raise FaultDidNotHappen(
            f"the reason that is reported is not why it stands still and what to do: {reason!r}"
        )
    system.ask("offsets", "set", GROUP, "kept", "--reason", "ZooKeeper was restored")
    stage.restored.append((since_ns, time.monotonic_ns()))
    if low := [shard for shard, offset in _offsets(system).items() if offset < then.get(shard, 0)]:
        stage.violations.append(
            f"shards {low} continue before where they were when ZooKeeper was copied"
        )
    stage.heal()
    return [
        f"{member} {'paused' if paused else 'killed'}; ZooKeeper went back, offsets fell {fell};"
        f" {reason}; continued on request"
    ]


def _clock_steps(stage: Stage) -> list[str]:
    system, host = stage.system, stage.host()
    ahead_s = stage.chance.choice((-HOUR_S, HOUR_S))
    stage.worker(host)
    stage.afflicted.update(host.worker_pids())
    host.clock.set(-ahead_s)  # it steps under a worker that is alive, and back past the right time
    time.sleep(2 * system.lease_s)
    host.clock.set(ahead_s)
    until(
        lambda: abs(_lease_is_ahead_s(system, stage.member(host)) - ahead_s) < HOUR_S / 60,
        "its lease is of another time",
    )
    until(
        lambda: system.is_settled(len(system.hosts)),
        "the shares are settled with a wrong clock among them",
    )
    _, member, _ = stage.at_work(host)
    off_s = _lease_is_ahead_s(system, member)
    pids = host.kill()
    stage.afflicted.update(pids)
    killed_s = time.monotonic()
    until(lambda: _all_but(system, member), "the others have its shards")
    took_s = time.monotonic() - killed_s
    if took_s > system.lease_s + _NOTICED_S:
        stage.violations.append(
            f"the shards of {member} were nobody's for {took_s:.1f} s, with a lease of"
            f" {system.lease_s:g} s"
        )
    host.clock.set(0)
    stage.begin(host)
    return [
        f"{member}: its clock {off_s:+.0f} s off, {pids} killed; its shards were others' after"
        f" {took_s:.1f} s"
    ]


def _offsets(system: TriggerSystem) -> dict[int, int]:
    found: dict[int, int] = {}

    def read() -> bool:
        try:
            found.update(
                {
                    shard: each.offset
                    for (_, shard), each in system.coordinator.fetch_offsets(GROUP).items()
                }
            )
        except CellfeedError:
            return False
        return bool(found)

    until(read, "ZooKeeper answers")
    return found


def _all_but(system: TriggerSystem, member: str) -> bool:
    """Whether every shard is somebody's, and none is that member's, also as workers see it."""
    owners = system.coordinator.owners(GROUP, "trips")
    return (
        bool(owners) and member not in owners.values() and system.is_settled(len(system.hosts) - 1)
    )


def _lease_is_ahead_s(system: TriggerSystem, member: str) -> float:
    """How far the end of a member's lease is from where it would be by this process's clock."""
    entry = system.datastore.state.get(lease_key(GROUP, member))
    return (
        (_lease(entry).expires_at_us / 1e6 - time.time() - system.lease_s)
        if entry is not None
        else 0.0
    )


TIME_FAULTS: Final[dict[str, Callable[[Stage], list[str]]]] = {
    "zookeeper-rollback": _zookeeper_rollback,
    "clock-steps": _clock_steps,
}
IN_STORE: Final = frozenset({"clock-steps"})
"""Kinds whose coordination is in the store."""
