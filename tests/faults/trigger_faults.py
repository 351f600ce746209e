"""The faults of a trigger group, by kind. Each returns the evidence of it, healed;
FaultDidNotHappen is raised for one that has shown nothing.

trigger-kill        kill -9 of a worker (its run starts it again), of a run (its worker drains), of
                    both (a host goes down; started again)
trigger-leader      kill -9 of the host whose worker leads
trigger-all         kill -9 of all at once, then all are started again
trigger-pause       SIGSTOP of a worker until its session has run out and the others have its
                    shards, then SIGCONT
zookeeper-killed    kill -9 of ZooKeeper, away for ``away_s``, started again with its data
zookeeper-empty     as before, but it returns empty: all stand still until
                    ``cellfeed offsets set billing kept``
zookeeper-cut       one host's connections to ZooKeeper are cut and refused until the others have
                    its shards
zookeeper-one-way   the bytes of one host to ZooKeeper, or of ZooKeeper to it, are held back for
                    longer than its session lasts
trigger-joins       workers join and leave, ``joins`` times, in any order
trigger-rolling     each run is ended with SIGTERM and another one started in its place
trigger-poison      trips that raise, hang, end their process and print without end
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.consumers.billing.charge_keys import GROUP
from tests.faults.trigger_system import (
    HOSTS,
    FaultDidNotHappen,
    Host,
    TriggerSystem,
    kill_pids,
    runs,
    until,
)
from tests.faults.trigger_watch import Calls, Feeder, Watch
from tests.support.stopping import stop_outside_a_commit
from tests.support.tcp_proxy import Direction


@dataclass(frozen=True)
class Scale:
    """How large a run is: ``trips`` in all, put at ``per_s``; ``faults`` of a kind that can be
    repeated; ``away_s``: how long ZooKeeper is; ``joins``: joins and leaves; ``poisons``: trips of
    each poison."""

    trips: int
    per_s: float
    faults: int
    away_s: float
    joins: int
    poisons: int


BRIEF = Scale(trips=240, per_s=30, faults=1, away_s=2.0, joins=4, poisons=1)
"""In the test suite."""

FULL = Scale(trips=6_433, per_s=70, faults=4, away_s=60.0, joins=100, poisons=3)
"""``make faults``: all trips that the product ships."""


@dataclass
class Stage:
    """The things that a fault may use, and the traces that it leaves: ``afflicted`` are the
    processes that were killed; ``overtaken`` are ``(pid, member, since_ns, back_ns)`` of those that
    were stopped or cut off, until they were seen to be back."""

    system: TriggerSystem
    watch: Watch
    calls: Calls
    feeder: Feeder
    chance: random.Random
    scale: Scale
    afflicted: set[int] = field(default_factory=set)
    overtaken: list[tuple[int, str, int, int]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """Of I14, found by the fault itself."""

    restored: list[tuple[int, int]] = field(default_factory=list)
    """From when until when the coordination had offsets of an earlier time, which somebody then
    set."""

    healed_ns: int = 0

    def heal(self) -> None:
        """The fault is over now: from then on it is recovery."""
        self.healed_ns = time.monotonic_ns()

    def host(self) -> Host:
        return self.chance.choice(self.system.hosts)

    def worker(self, host: Host) -> psutil.Process:
        until(lambda: host.worker() is not None, f"{host.prefix} has a worker")
        worker = host.worker()
        assert worker is not None
        return worker

    def member(self, host: Host) -> str:
        until(lambda: host.member() is not None, f"{host.prefix} is in the group")
        member = host.member()
        assert member is not None
        return member

    def begin(self, *hosts: Host) -> None:
        """Starts hosts, and waits until their workers have begun: from then on the group is looked
        at, not how fast this machine starts Python."""
        for host in hosts:
            host.start()
        for host in hosts:
            self.member(host)
        self.heal()

    def at_work(self, host: Host) -> tuple[psutil.Process, str, int]:
        """A host's worker, its name in the group, and since when it has more to do than it can do
        at once."""
        worker, member = self.worker(host), self.member(host)
        since_ns = time.monotonic_ns()
        self.feeder.burst(self.scale.trips // (4 * self.scale.faults))
        until(
            lambda: any(
                call.pid == worker.pid and call.begun_ns > since_ns for call in self.calls.read()
            ),
            f"{member} is at work",
        )
        return worker, member, time.monotonic_ns()

    def back(self, worker: psutil.Process, member: str, since_ns: int) -> None:
        """Waits until one that was stopped or cut off is in the group again."""
        until(lambda: member in self.watch.present(), "it joins again")
        self.overtaken.append((worker.pid, member, since_ns, time.monotonic_ns()))

    def taken_over(self, member: str) -> bool:
        """Whether a member is gone and all shards are the others'."""
        return member not in self.watch.present() and self.system.is_settled(
            len(self.system.hosts) - 1
        )


def _kill(stage: Stage) -> list[str]:
    return [
        _KILLS[what](stage, stage.host())
        for what in stage.chance.sample(sorted(_KILLS), min(2, len(_KILLS)))
    ]


def _kill_worker(stage: Stage, host: Host) -> str:
    """Its run starts it again, under its name."""
    worker, member = stage.worker(host), stage.member(host)
    until(lambda: member in stage.watch.present(), "it was seen")
    epochs = len(stage.watch.epochs()[member])
    stage.afflicted.update(kill_pids([worker]))
    until(
        lambda: len(stage.watch.epochs().get(member, ())) > epochs,
        f"the run of {host.prefix} starts its worker again, which joins",
    )
    stage.heal()
    return f"{host.prefix}: worker {worker.pid} killed, {stage.worker(host).pid} started by its run"


def _kill_run(stage: Stage, host: Host) -> str:
    """Its worker notices, drains and ends: that costs no cell a second run."""
    worker, run = stage.worker(host), host.run
    assert run is not None
    run.kill()
    run.wait(10)
    until(lambda: not runs(worker), f"the worker of {host.prefix} ends with its run")
    stage.begin(host)
    assert host.run is not None
    return (
        f"{host.prefix}: run {run.pid} killed, its worker {worker.pid} ended, run {host.run.pid}"
        " started"
    )


def _kill_host(stage: Stage, host: Host) -> str:
    stage.worker(host)
    pids = host.kill()
    stage.afflicted.update(pids)
    time.sleep(stage.chance.uniform(0.1, 1.0))
    stage.begin(host)
    assert host.run is not None
    if host.run.pid in pids:
        raise FaultDidNotHappen(f"{host.prefix} has a pid that was killed")
    return f"{host.prefix}: run and worker {pids} killed, run {host.run.pid} started"


_KILLS: dict[str, Callable[[Stage, Host], str]] = {
    "worker": _kill_worker,
    "run": _kill_run,
    "host": _kill_host,
}


def _leader(stage: Stage) -> list[str]:
    coordinator = stage.system.coordinator
    until(lambda: coordinator.leader(GROUP) is not None, "somebody leads")
    leader = coordinator.leader(GROUP)
    [host] = [each for each in stage.system.hosts if each.member() == leader]
    told = _kill_host(stage, host)
    until(lambda: coordinator.leader(GROUP) not in (None, leader), "another one leads")
    return [f"{leader} led, {coordinator.leader(GROUP)} leads now; {told}"]


def _all(stage: Stage) -> list[str]:
    hosts = stage.system.hosts
    workers = [stage.worker(host) for host in hosts]
    killed = [psutil.Process(host.run.pid) for host in hosts if host.run is not None]
    for run in killed:
        run.send_signal(
            signal.SIGSTOP
        )  # so that none of them starts its worker again before it is killed itself
    stage.afflicted.update(kill_pids([*workers, *killed]))
    time.sleep(stage.chance.uniform(0.1, 1.0))
    stage.begin(*hosts)
    return [
        f"workers {sorted(worker.pid for worker in workers)} and their runs killed, runs"
        f" {[host.run.pid for host in hosts if host.run]} started"
    ]


def _pause(stage: Stage) -> list[str]:
    worker, member, since_ns = stage.at_work(stage.host())
    stop_outside_a_commit(worker)
    try:
        until(
            lambda: stage.taken_over(member),
            "its session has run out and the others have its shards",
        )
        time.sleep(stage.chance.uniform(0.0, 1.0))
        if worker.status() != psutil.STATUS_STOPPED:
            raise FaultDidNotHappen(f"{worker.pid} was not stopped")
    finally:
        worker.resume()
        stage.heal()
    stage.back(worker, member, since_ns)
    return [
        f"{member}: worker {worker.pid} stopped until its shards were others', then joined again"
    ]


def _zookeeper_away(stage: Stage) -> str:
    """Kills it; the time away begins. Work has to continue."""
    process = stage.system.zookeeper.process
    assert process is not None
    before = stage.calls.ended()
    stage.system.zookeeper.kill()
    time.sleep(stage.scale.away_s)
    ran, looks = stage.calls.ended() - before, stage.watch.failed
    if not ran or not looks:
        raise FaultDidNotHappen(f"{ran} calls while ZooKeeper was away, {looks} looks failed")
    return (
        f"ZooKeeper, pid {process.pid}, killed; {ran} calls in {stage.scale.away_s:g} s without it"
    )


def _zookeeper_killed(stage: Stage) -> list[str]:
    told = _zookeeper_away(stage)
    stage.system.zookeeper.start()
    assert stage.system.zookeeper.process is not None
    return [f"{told}; pid {stage.system.zookeeper.process.pid} started"]


def _zookeeper_empty(stage: Stage) -> list[str]:
    system = stage.system
    told = _zookeeper_away(stage)
    logs = {host: len(host.log.read_text()) for host in system.hosts}
    system.zookeeper.wipe()
    system.zookeeper.start()
    until(
        lambda: all("stands still" in host.log.read_text()[size:] for host, size in logs.items()),
        "all say that they stand still",
    )
    until(lambda: nothing_runs(stage), "the last cells under way have ended")
    before = stage.calls.ended()
    time.sleep(2 * system.lease_s)
    if ran := stage.calls.ended() - before:
        stage.violations.append(f"{ran} cells were run while nobody knew where the work continues")
    reason = system.ask("triggers", "lag", GROUP)["waits_because"] or ""
    if "stands still" not in reason or f"cellfeed offsets set {GROUP} kept" not in reason:
        raise FaultDidNotHappen(
            f"the reason that is reported is not why it stands still and what to do: {reason!r}"
        )
    system.ask("offsets", "set", GROUP, "kept", "--reason", "ZooKeeper came back empty")
    return [f"{told}; started empty; {reason}; continued on request"]


def nothing_runs(stage: Stage) -> bool:
    before = stage.calls.ended()
    time.sleep(0.3)
    return stage.calls.ended() == before


def _cut(stage: Stage) -> list[str]:
    host = stage.host()
    worker, member, since_ns = stage.at_work(host)
    accepted = host.proxy.connections
    cut = host.proxy.down()
    try:
        until(
            lambda: stage.taken_over(member),
            "its session has run out and the others have its shards",
        )
        time.sleep(stage.chance.uniform(0.0, 1.0))
        if not cut or host.proxy.connections > accepted:
            raise FaultDidNotHappen(
                f"{cut} connections were cut, {host.proxy.connections - accepted} let through"
            )
    finally:
        host.proxy.up()
        stage.heal()
    stage.back(worker, member, since_ns)
    return [
        f"{member}: {cut} connections to ZooKeeper cut until its shards were others', then joined"
        " again"
    ]


def _one_way(stage: Stage) -> list[str]:
    host = stage.host()
    direction = stage.chance.choice(list(Direction))
    worker, member, since_ns = stage.at_work(host)
    before = host.proxy.held[direction]
    host.proxy.silence(direction)
    try:
        if direction is Direction.TO_SERVER:
            until(
                lambda: stage.taken_over(member),
                "its session has run out and the others have its shards",
            )
        else:
            time.sleep(2 * stage.system.session_s)
        if not (held := host.proxy.held[direction] - before):
            raise FaultDidNotHappen(f"no byte {direction.value} was held back")
    finally:
        host.proxy.resume()
        stage.heal()
    stage.back(worker, member, since_ns)
    return [f"{member}: {held} bytes {direction.value} held back for longer than its session lasts"]


def _joins(stage: Stage) -> list[str]:
    system = stage.system
    joined = left = 0
    for number in range(stage.scale.joins):
        up = [host for host in system.hosts if host.is_up]
        idle = [host for host in system.hosts if not host.is_up]
        if len(up) < HOSTS or (
            len(up) < HOSTS + 2 and (number == 0 or stage.chance.random() < 0.5)
        ):
            (stage.chance.choice(idle) if idle else system.add_host()).start()
            joined += 1
        else:
            _end(stage, stage.chance.choice(up))
            left += 1
        if stage.chance.random() < 0.7:
            until(
                lambda: system.is_settled(sum(host.is_up for host in system.hosts)),
                "the shares are settled",
            )
    for host in [host for host in system.hosts if host.is_up][HOSTS:]:
        _end(stage, host)
    generations = max(
        holder.version for sample in stage.watch.samples for holder in sample.holders.values()
    )
    if not (joined and left and generations):
        raise FaultDidNotHappen(f"{joined} joins, {left} leaves, {generations} changes of a claim")
    return [f"{joined} joins and {left} leaves; a shard changed hands up to {generations} times"]


def _end(stage: Stage, host: Host) -> None:
    """SIGTERM to one that has begun."""
    stage.member(host)
    if code := host.end():
        stage.violations.append(f"{host.prefix} ended with code {code} after SIGTERM")


def _rolling(stage: Stage) -> list[str]:
    witnessed = []
    for host in stage.system.hosts:
        worker, ran = stage.worker(host), stage.calls.ended()
        _end(stage, host)
        host.start()
        until(lambda: stage.system.is_settled(HOSTS), "the next one has its share")
        if not (meanwhile := stage.calls.ended() - ran):
            raise FaultDidNotHappen(f"nothing ran while {host.prefix} was started again")
        witnessed.append(
            f"{host.prefix}: worker {worker.pid} ended, {stage.worker(host).pid} in its place;"
            f" {meanwhile} calls meanwhile"
        )
    return witnessed


def _poison(stage: Stage) -> list[str]:
    """The poisoned trips are put with the others; this waits until they are parked."""
    poisoned = 4 * stage.scale.poisons

    def parked() -> dict[str, str]:
        return {
            cell.row_key: cell.error
            for cell in ParkedCells(stage.system.datastore.state).all(GROUP)
        }

    until(lambda: len(parked()) >= poisoned, "all that is poison is parked", 120)
    errors = "\n".join(parked().values())
    wanted = (
        "poison: this trip cannot be billed",
        "TimedOut",
        "in _hang",
        "ProcessEnded",
        "in _print_without_end",
    )
    missing = [each for each in wanted if each not in errors]
    said = sum("and on and on" in host.log.read_text() for host in stage.system.hosts)
    if missing or not said:
        raise FaultDidNotHappen(
            f"no parked cell has the error of {missing}; {said} logs have what was printed"
        )
    ended = sum(
        host.log.read_text().count("has ended with exit code") for host in stage.system.hosts
    )
    return [
        f"{len(parked())} cells parked: they raised, hung, printed without end, and ended their"
        f" processes; {ended} processes ended"
    ]


FAULTS: dict[str, Callable[[Stage], list[str]]] = {
    "trigger-kill": _kill,
    "trigger-leader": _leader,
    "trigger-all": _all,
    "trigger-pause": _pause,
    "zookeeper-killed": _zookeeper_killed,
    "zookeeper-empty": _zookeeper_empty,
    "zookeeper-cut": _cut,
    "zookeeper-one-way": _one_way,
    "trigger-joins": _joins,
    "trigger-rolling": _rolling,
    "trigger-poison": _poison,
}
HURT_ZOOKEEPER = frozenset({"zookeeper-killed", "zookeeper-empty", "zookeeper-rollback"})
"""Kinds that need one of their own."""

REPEATED = frozenset(
    {
        "trigger-kill",
        "trigger-leader",
        "trigger-all",
        "trigger-pause",
        "zookeeper-cut",
        "zookeeper-one-way",
        "clock-steps",
    }
)
"""Kinds that a large run has several times."""
