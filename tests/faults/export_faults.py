"""The faults of an export in a fault run (``export_run.py``), and the proof that they happened.

export-kill           kill -9 of an exporter, at a random moment or at a random failpoint; another
                      one is started in its place
export-zombie         SIGSTOP of an exporter until its session has run out and the other one has its
                      shards, then SIGCONT
export-network        an exporter's connections to the broker, or to ZooKeeper, are cut, stalled,
                      silent one way, or cut after some bytes, through proxies
export-store-cut      the same between an exporter and the store, which is a MariaDB server then
export-broker         kill -9 of the broker, away for a while, started again with its data
export-zookeeper      kill -9 of ZooKeeper, away for a while, started again with its data:
                      exporting continues meanwhile
export-rollback       ZooKeeper returns with its data directory of before: exporting continues, by
                      the records of the partitions
export-cluster-away   the whole Kafka cluster (one broker) is away for several times as long as the
                      client keeps a record, once for longer than every
                      time-out of client and broker, and far more comes than fits into one
                      transaction: exporters wait in the memory that they had
export-rolling        each exporter is ended in good order and started again, one after the other:
                      no partition stands still for longer than 5 s
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.zookeeper.sessions import SESSION_PER_LEASE
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_clients import consumer_of
from cellfeed.bridge.export.limits import TRANSACTION_TIMEOUT_S
from cellfeed.bridge.export.tails import read_tails
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from tests.faults.invariants import Violations
from tests.support.export_steps import LEASE_S, Exporter, ends, kafka_admin, pause, put
from tests.support.local_kafka import Kafka
from tests.support.local_zookeeper import ZooKeeper
from tests.support.tcp_proxy import Direction, TcpProxy

if TYPE_CHECKING:
    from tests.faults.export_run import Reader

STORE_CUT = "export-store-cut"
"""The kind whose store is a server."""

SHARDS = 8
UNITS = 4
LIMIT_S = 120.0
PAUSE_MAX_S = 5.0
"""I21: for how long a rolling restart may hold up a partition."""

MEMORY_MORE_MAX_BYTES = 64 << 20
"""I22: the memory that an exporter may need more while its cluster is away: the batch under way of
each of its units, and the client's own buffers."""

_FAILPOINTS = (
    "export.before_begin",
    "export.after_produce",
    "export.before_commit",
    "export.after_commit",
    "export.before_save",
    "export.after_save",
    "export.after_fencing",
)
SHORT_TIMEOUT_S = 2.0
"""Of a record in the client, in a run in which the cluster goes away: some seconds are to this as
an hour is to the thirty seconds that it comes with."""

TIMEOUTS = 3
"""For so many times as long as that the cluster is away, at least."""

LONGEST_AWAY_S = TRANSACTION_TIMEOUT_S + 5.0
"""For so long it is away once in a run at full scale. The other time-outs have passed until then as
well: of a transaction at the broker (30 s), which finds it too old when it is back; of a request to
it (20 s); and the look at the topic (every 30 s). In an hour only the client's metadata gets old
beside these (15 minutes), which has it ask again; the broker forgets producers after a day,
transactional ids after a week."""

_SESSIONS_END_S = 2 * SESSION_PER_LEASE * LEASE_S
"""So long after ZooKeeper has returned, each session that it knows is alive, or has ended."""

_TRIES = 5
"""Kills of ZooKeeper until one comes while every exporter has its session."""

_WAITS = "the Kafka cluster"


@dataclass(frozen=True)
class ExportScale:
    """``faults`` of the kind, one after the other; ``away_s``: how long a server is; ``cells`` that
    are there before; ``cells_away``: that come while the whole cluster is away, each of about a
    kilobyte; ``past_all_timeouts``: whether it is away for ``LONGEST_AWAY_S`` once."""

    faults: int
    away_s: float
    cells: int
    cells_away: int
    past_all_timeouts: bool = False


BRIEF = ExportScale(faults=1, away_s=2.0, cells=1_000, cells_away=20_000)
FULL = ExportScale(faults=5, away_s=20.0, cells=20_000, cells_away=60_000, past_all_timeouts=True)


@dataclass(frozen=True)
class Link:
    """An exporter's ways to the servers. ``store``: to that of a store that is one."""

    kafka: TcpProxy
    zookeeper: TcpProxy
    store: TcpProxy | None


@dataclass
class Stage:
    """The parts that a fault may use. ``processes`` by name: the running parts. ``links`` by the
    exporter's name, where there are proxies. ``violations`` that it has found."""

    store: Datastore
    export: Export
    kafka: Kafka
    zookeeper: ZooKeeper
    coordinator: Coordinator
    processes: dict[str, Exporter]
    start: Callable[[str, str], Exporter]
    chance: random.Random
    scale: ExportScale
    links: Mapping[str, Link]
    reader: Reader
    been_away: bool = False
    """Whether the whole cluster was away before."""

    zookeeper_was_away: bool = False
    violations: Violations = field(default_factory=dict)

    def owners(self) -> dict[int, str]:
        return self.coordinator.owners(self.export.group, self.store.name)


def _kill(stage: Stage) -> list[str]:
    name = stage.chance.choice(sorted(stage.processes))
    victim = stage.processes.pop(name)
    if stage.chance.random() < 0.5:
        victim.kill()
        witnessed = f"{name} (pid {victim.process.pid}) was killed"
    else:  # ended in good order; the one in its place is killed at a failpoint
        victim.drain()
        failpoint, number = stage.chance.choice(_FAILPOINTS), stage.chance.randint(1, 4)
        doomed = stage.start(
            f"{name}x", f"{failpoint}=kill@{1 if failpoint.endswith('fencing') else number}"
        )
        doomed.wait_killed()
        del stage.processes[doomed.name]
        witnessed = f"{doomed.name} (pid {doomed.process.pid}) was killed at {failpoint}"
    stage.start(f"{name}r", "")
    return [witnessed]


def _zombie(stage: Stage) -> list[str]:
    name = stage.chance.choice(sorted(stage.processes))
    zombie = stage.processes[name]
    pause(zombie, stage.store)
    until(lambda: name not in stage.owners().values(), f"the shards of {name} are taken over")
    time.sleep(stage.chance.uniform(0, 1))
    zombie.signal(signal.SIGCONT)
    until(lambda: zombie.said("another exporter"), f"{name} has noticed")
    return [f"{name} (pid {zombie.process.pid}) was paused until others had its shards"]


def _broker(stage: Stage) -> list[str]:
    pid = stage.kafka.pid
    stage.kafka.kill()
    time.sleep(stage.chance.uniform(0.5, 1) * stage.scale.away_s)
    stage.kafka.start()
    answered_s, admin = time.monotonic(), kafka_admin(stage.kafka)
    until(
        lambda: _leads_all(admin), "the broker leads its partitions again"
    )  # Kafka's own time; any longer wait is that of others
    led_s = time.monotonic() - answered_s
    return [
        f"the broker (pid {pid}) was killed and started again (pid {stage.kafka.pid}); it led its"
        f" partitions {led_s:.1f} s after its first answer"
    ]


def _leads_all(admin: AdminClient) -> bool:
    """Whether each partition has a leader. A broker that returns answers before that: while its
    old session lasts it is not let in."""
    try:
        topics = admin.list_topics(timeout=2.0).topics.values()
    except KafkaException:
        return False
    return bool(topics) and all(
        topic.error is None and partition.leader >= 0
        for topic in topics
        for partition in topic.partitions.values()
    )


def _zookeeper(stage: Stage) -> list[str]:
    for _ in range(_TRIES):
        # A unit that changes hands when ZooKeeper goes waits for it: only those that somebody has
        # continue. A session that did not find back after an earlier kill ends a while later.
        ended = _ended_sessions(stage)
        time.sleep(_SESSIONS_END_S if stage.zookeeper_was_away else 0)
        until(lambda: _shares_are_settled(stage), "each exporter has its share")
        before = ends(stage.store)
        until(
            partial(_saved_up_to, stage, before), "the exporters that have the units work on them"
        )
        stage.zookeeper.kill()
        stage.zookeeper_was_away = True
        time.sleep(0.5 * stage.scale.away_s)
        if _ended_sessions(stage) == ended:  # none ends while ZooKeeper is away
            break
        stage.zookeeper.start()
    else:
        raise TimeoutError(f"a session ended before each of {_TRIES} kills of ZooKeeper")
    wanted = ends(stage.store)
    until(lambda: has_come_to(stage.export, wanted), "exporting continues without ZooKeeper")
    time.sleep(0.5 * stage.scale.away_s)
    stage.zookeeper.start()
    return ["ZooKeeper was killed, cells were exported without it, and it was started again"]


def _ended_sessions(stage: Stage) -> int:
    return sum(
        each.log.read_text(errors="replace").count("Session has expired")
        for each in stage.processes.values()
    )


def _rollback(stage: Stage) -> list[str]:
    copy = stage.zookeeper.directory.with_name(f"zookeeper-copy-{time.monotonic_ns()}")
    stage.zookeeper.copy(copy)
    until(
        lambda: _shares_are_settled(stage),
        "each exporter has its share after ZooKeeper was stopped for a copy",
    )
    then, wanted = _saved_offsets(stage), ends(stage.store)
    until(
        lambda: (
            _saved_up_to(stage, wanted) and sum(_saved_offsets(stage).values()) > sum(then.values())
        ),
        "they save what they exported since",
    )
    before = _saved_offsets(stage)
    stage.zookeeper.kill()
    stage.zookeeper.go_back(copy)
    stage.zookeeper.start()
    restored = _saved_offsets(stage)
    wanted = ends(stage.store)
    until(lambda: has_come_to(stage.export, wanted), "exporting continues")
    stage.coordinator.lineage(stage.export.group)
    if stage.coordinator.why_changed() is None:
        raise TimeoutError(f"ZooKeeper went back from {before} to {restored}, and nobody noticed")
    until(lambda: _shares_are_settled(stage), "each exporter has its share again")
    return [f"ZooKeeper went back from {before} to {restored}; {stage.coordinator.why_changed()}"]


def _saved_offsets(stage: Stage) -> dict[int, int]:
    found: dict[int, int] = {}

    def read() -> bool:
        try:
            found.update(
                {
                    shard: each.offset
                    for (_, shard), each in stage.coordinator.fetch_offsets(
                        stage.export.group
                    ).items()
                }
            )
        except Unavailable:  # this run's own connection is not back yet
            return False
        return True

    until(read, "ZooKeeper answers")
    return found


def _shares_are_settled(stage: Stage) -> bool:
    """Whether each exporter has as much as the others: nothing is about to change hands then."""
    try:
        shares = Counter(stage.owners().values())
    except Unavailable:  # this run's own connection is not back yet
        return False
    return (
        set(shares) == set(stage.processes)
        and max(shares.values()) - min(shares.values()) <= SHARDS // UNITS
    )


def _saved_up_to(stage: Stage, wanted: Mapping[int, int]) -> bool:
    """Whether the owner of each shard has saved that it came so far: its claim held then, and the
    unit was taken over."""
    try:
        offsets = stage.coordinator.fetch_offsets(stage.export.group)
    except Unavailable:
        return False
    return all(
        (found := offsets.get((stage.store.name, shard))) is not None
        and found.offset >= wanted[shard]
        for shard in wanted
    )


def _network(stage: Stage) -> list[str]:
    name = stage.chance.choice(sorted(stage.links))
    server = stage.chance.choice(
        ("kafka", "zookeeper") if stage.links[name].store is None else ("store",)
    )
    proxy: TcpProxy = getattr(stage.links[name], server)
    direction = stage.chance.choice(list(Direction))
    how = stage.chance.choice(("cut", "stalled", "silent", "cut after some bytes"))
    cuts, held = proxy.cuts, sum(proxy.held.values())
    if how == "cut":
        proxy.down()
    elif how == "stalled":
        proxy.stall()
    elif how == "silent":
        proxy.silence(direction)
    else:
        proxy.drop_after(stage.chance.randint(1, 20_000), direction)
    until(
        lambda: proxy.cuts > cuts or sum(proxy.held.values()) > held,
        f"the fault is felt between {name} and {server}",
    )
    time.sleep(stage.chance.uniform(0.5, 1) * stage.scale.away_s)
    proxy.clear()
    felt = f"{proxy.cuts - cuts} connections were cut, {sum(proxy.held.values()) - held} bytes held"
    return [
        f"{name} and {server} were"
        f" {how}{f' {direction.value}' if how.startswith(('silent', 'cut after')) else ''}: {felt}"
    ]


def _cluster_away(stage: Stage) -> list[str]:
    pid, exporters = stage.kafka.pid, list(stage.processes.values())
    at_least_s = max(stage.scale.away_s, TIMEOUTS * SHORT_TIMEOUT_S)
    if stage.scale.past_all_timeouts and not stage.been_away:
        at_least_s = max(at_least_s, LONGEST_AWAY_S)
    stage.been_away = True
    usage = [psutil.Process(each.process.pid) for each in exporters]
    before = [each.memory_info().rss for each in usage]
    most, lag = list(before), LagReader(stage.store, stage.coordinator)
    stage.kafka.kill()
    gone_s = time.monotonic()

    def waited() -> bool:
        most[:] = [
            max(peak, process.memory_info().rss) for peak, process in zip(most, usage, strict=True)
        ]
        away_s = time.monotonic() - gone_s
        return away_s > at_least_s and all(
            _WAITS in each.because for each in lag.read(stage.export.group).shards
        )

    put(
        stage.store,
        stage.scale.cells_away,
        first=stage.chance.randint(10, 1_000_000) * 10_000_000,
        size=1_000,
    )
    until(waited, "every shard waits for the cluster")
    away_s = time.monotonic() - gone_s
    stage.kafka.start()
    more = [peak - start for peak, start in zip(most, before, strict=True)]
    if max(more) > MEMORY_MORE_MAX_BYTES:
        stage.violations.setdefault("I22", []).append(
            f"an exporter needed {max(more) >> 20} MiB more while the cluster was away"
        )
    return [
        f"the cluster (pid {pid}) was away for {away_s:.1f} s while {stage.scale.cells_away} cells"
        f" came; every shard waited for it, and an exporter needed up to {max(more) / 2**20:.1f}"
        " MiB more"
    ]


def _rolling(stage: Stage) -> list[str]:
    stage.reader.watch_pauses()
    restarted = []
    for name in sorted(stage.processes):
        old = stage.processes.pop(name)
        old.drain()
        new = stage.start(f"{name}r", "")
        restarted.append(
            f"{name} (pid {old.process.pid}) became {new.name} (pid {new.process.pid})"
        )
        until(
            lambda: set(stage.owners().values()) == set(stage.processes),
            "both exporters have their shares",
        )
    pause_s = stage.reader.longest_pause_s()
    if pause_s > PAUSE_MAX_S:
        stage.violations.setdefault("I21", []).append(
            f"a partition stood still for {pause_s:.1f} s in a rolling restart"
        )
    return [
        f"{'; '.join(restarted)}; the longest that a partition had nothing new: {pause_s:.2f} s"
    ]


FAULTS: dict[str, Callable[[Stage], list[str]]] = {
    "export-kill": _kill,
    "export-zombie": _zombie,
    "export-network": _network,
    STORE_CUT: _network,
    "export-broker": _broker,
    "export-zookeeper": _zookeeper,
    "export-rollback": _rollback,
    "export-cluster-away": _cluster_away,
    "export-rolling": _rolling,
}
EXPORT_KINDS = tuple(FAULTS)


def has_come_to(export: Export, wanted: dict[int, int]) -> bool:
    found = _exported(export)
    return all(found.get(shard, 0) >= location for shard, location in wanted.items())


def _exported(export: Export) -> dict[int, int]:
    with closing(consumer_of(export)) as consumer:
        try:
            tails = read_tails(consumer, export.topic or "", range(SHARDS))
        except Exception:  # the broker is away, or the topic not made yet
            return {}
    return {
        shard: 0 if each.tail.added_id is None else each.tail.added_id + 1
        for shard, each in tails.items()
    }


def until(done: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {LIMIT_S:.0f} s: {what}")
        time.sleep(0.05)
