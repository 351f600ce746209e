"""One fault run on an export: cells are put while exporters, the broker and ZooKeeper fail; afterwards the topic is compared with the log from outside.

export-kill         kill -9 of an exporter, at a random moment or at a random failpoint; another one is started in its place
export-zombie       SIGSTOP of an exporter until its session has run out and the other one has its shards, then SIGCONT
export-broker       kill -9 of the broker, away for a while, started again with what it had
export-zookeeper    kill -9 of ZooKeeper, away for a while, started again with what it had: exporting goes on meanwhile

I15: each partition equals its shard's log, in order, nothing twice; a reader of committed records that is there all the time sees nothing else. I17: the
digests of both sides are equal. I21: after a fault has healed, every cell that was put before is exported in time.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import TopicPartition

from bridge.coordination.contract import Coordinator
from bridge.coordination.open import open_coordinator
from bridge.events.messages import header_values
from bridge.events.record_headers import added_id_of
from bridge.export.declaration import Export
from bridge.export.kafka_clients import consumer_of
from bridge.export.tails import read_tails
from bridge.export.verify import verify_export
from store.datastore import Datastore
from tests.faults.run import FaultRun
from tests.integration.export_steps import LEASE_S, Exporter, Writer, check_equal, ends, export_to, pause, put
from tests.services.local_kafka import Kafka
from tests.services.local_zookeeper import ZooKeeper

EXPORT_KINDS = ("export-kill", "export-zombie", "export-broker", "export-zookeeper")
SHARDS = 8
UNITS = 4
RECOVERY_MAX_S = 10.0
"""I21: everything is going again ten seconds after a fault heals, and the session of whoever was killed."""

_LIMIT_S = 120.0
_FAILPOINTS = ("export.before_begin", "export.after_produce", "export.before_commit", "export.after_commit", "export.before_save", "export.after_fencing")


@dataclass(frozen=True)
class ExportScale:
    """``faults`` of the kind, one after the other; ``away_s``: how long a server is; ``cells`` that are there before."""

    faults: int
    away_s: float
    cells: int


BRIEF = ExportScale(faults=1, away_s=2.0, cells=1_000)
FULL = ExportScale(faults=5, away_s=20.0, cells=20_000)


class Reader(threading.Thread):
    """Reads committed records from the beginning, as a consumer does, and notes what no reader may see."""

    def __init__(self, export: Export) -> None:
        super().__init__(name="export-reader", daemon=True)
        self._export = export
        self._stopping = threading.Event()
        self.next_ids = dict.fromkeys(range(SHARDS), 0)
        self.violations: list[str] = []

    def run(self) -> None:
        with closing(consumer_of(self._export)) as consumer:
            consumer.assign([TopicPartition(self._export.topic or "", shard, 0) for shard in range(SHARDS)])
            while not self._stopping.is_set():
                for message in consumer.consume(1_000, timeout=0.2):
                    if message.error() is not None:
                        continue  # an end, or the broker is away
                    shard, added_id = message.partition() or 0, added_id_of(header_values(message).items())
                    if added_id != self.next_ids[shard]:
                        self.violations.append(f"partition {shard}: cell {added_id} came at offset {message.offset()}, {self.next_ids[shard]} was next")
                    self.next_ids[shard] = (added_id or 0) + 1

    def stop(self) -> None:
        self._stopping.set()
        self.join(_LIMIT_S)


@dataclass
class Stage:
    """What a fault may use. ``processes`` by name: what runs."""

    store: Datastore
    export: Export
    kafka: Kafka
    zookeeper: ZooKeeper
    coordinator: Coordinator
    processes: dict[str, Exporter]
    start: Callable[[str, str], Exporter]
    chance: random.Random
    scale: ExportScale

    def owners(self) -> dict[int, str]:
        return self.coordinator.owners(self.export.group, self.store.name)


def run_export_faults(kind: str, seed: int, directory: Path, scale: ExportScale = FULL) -> FaultRun:
    """Runs and checks. What is hit, and when, follows from the seed."""
    chance, result = random.Random(f"{kind}-{seed}"), FaultRun(kind, seed)
    with ExitStack() as stack:
        kafka, zookeeper = Kafka(directory / "kafka"), ZooKeeper(directory / "zookeeper")
        stack.callback(kafka.kill)
        stack.callback(zookeeper.kill)
        kafka.start()
        zookeeper.start()
        place = directory / "store"
        store = stack.enter_context(Datastore.open_embedded(place, shards=SHARDS))
        url = f"zookeeper://{zookeeper.hosts}/export-faults"
        coordinator = stack.enter_context(closing(open_coordinator(url, store.state)))
        export = export_to(kafka, units=UNITS)
        processes: dict[str, Exporter] = {}

        def start(name: str, failpoints: str = "") -> Exporter:
            started = processes[name] = Exporter(place, name, SHARDS, [export], url, failpoints)
            stack.callback(started.kill)
            return started

        put(store, scale.cells)
        start("a")
        start("b")
        stage = Stage(store, export, kafka, zookeeper, coordinator, processes, start, chance, scale)
        _until(lambda: set(stage.owners().values()) == {"a", "b"}, "both exporters have their shares")
        _until(lambda: sum(_exported(export).values()) > 0, "the work is under way")
        reader, writers = Reader(export), [Writer(store, number) for number in range(2)]
        for thread in (reader, *writers):
            thread.start()
        try:
            for _ in range(scale.faults):
                time.sleep(chance.uniform(0.1, 1.0))
                before = sum(writer.cells for writer in writers)
                result.witnessed += _FAULTS[kind](stage)
                healed_s, wanted = time.monotonic(), ends(store)
                result.operations_inside += sum(writer.cells for writer in writers) - before
                _until(lambda wanted=wanted: _has_come_to(export, wanted), "everything is exported that was put before")  # type: ignore[misc]
                result.recovery_s.append(time.monotonic() - healed_s)
            for writer in writers:
                writer.stop()
            wanted = ends(store)
            _until(lambda: _has_come_to(export, wanted) and reader.next_ids == wanted, "all is exported and read")
        except TimeoutError as error:
            result.violations["I21"] = [str(error)]
        finally:
            for thread in (*writers, reader):
                thread.stop()
        slow = [f"recovery took {each:.1f} s" for each in result.recovery_s if each > RECOVERY_MAX_S + 2 * LEASE_S]
        result.violations["I21"] = result.violations.get("I21", []) + slow
        result.violations["I15"] = [*reader.violations, *_differences(store, export)]
        result.violations["I17"] = [
            f"shard {each.shard}: {each.what or 'the digests differ'}"
            for each in verify_export(export, store)
            if not each.equal or each.partition_digest != each.log_digest
        ]
    return result


def _kill(stage: Stage) -> list[str]:
    name = stage.chance.choice(sorted(stage.processes))
    victim = stage.processes.pop(name)
    if stage.chance.random() < 0.5:
        victim.kill()
        witnessed = f"{name} (pid {victim.process.pid}) was killed"
    else:  # ended in good order; the one in its place is killed at a failpoint
        victim.drain()
        failpoint, number = stage.chance.choice(_FAILPOINTS), stage.chance.randint(1, 4)
        doomed = stage.start(f"{name}x", f"{failpoint}=kill@{1 if failpoint.endswith('fencing') else number}")
        doomed.wait_killed()
        del stage.processes[doomed.name]
        witnessed = f"{doomed.name} (pid {doomed.process.pid}) was killed at {failpoint}"
    stage.start(f"{name}r", "")
    return [witnessed]


def _zombie(stage: Stage) -> list[str]:
    name = stage.chance.choice(sorted(stage.processes))
    zombie = stage.processes[name]
    pause(zombie, stage.store)
    _until(lambda: name not in stage.owners().values(), f"the shards of {name} are taken over")
    time.sleep(stage.chance.uniform(0, 1))
    zombie.signal(signal.SIGCONT)
    _until(lambda: zombie.said("another exporter"), f"{name} has noticed")
    return [f"{name} (pid {zombie.process.pid}) was paused until others had its shards"]


def _broker(stage: Stage) -> list[str]:
    pid = stage.kafka.pid
    stage.kafka.kill()
    time.sleep(stage.chance.uniform(0.5, 1) * stage.scale.away_s)
    stage.kafka.start()
    return [f"the broker (pid {pid}) was killed and started again (pid {stage.kafka.pid})"]


def _zookeeper(stage: Stage) -> list[str]:
    stage.zookeeper.kill()
    time.sleep(0.5 * stage.scale.away_s)
    wanted = ends(stage.store)
    _until(lambda: _has_come_to(stage.export, wanted), "exporting goes on without ZooKeeper")
    time.sleep(0.5 * stage.scale.away_s)
    stage.zookeeper.start()
    return ["ZooKeeper was killed, cells were exported without it, and it was started again"]


_FAULTS: dict[str, Callable[[Stage], list[str]]] = dict(zip(EXPORT_KINDS, (_kill, _zombie, _broker, _zookeeper), strict=True))


def _has_come_to(export: Export, wanted: dict[int, int]) -> bool:
    found = _exported(export)
    return all(found.get(shard, 0) >= location for shard, location in wanted.items())


def _exported(export: Export) -> dict[int, int]:
    with closing(consumer_of(export)) as consumer:
        try:
            tails = read_tails(consumer, export.topic or "", range(SHARDS))
        except Exception:  # the broker is away, or the topic not made yet
            return {}
    return {shard: 0 if each.tail.added_id is None else each.tail.added_id + 1 for shard, each in tails.items()}


def _differences(store: Datastore, export: Export) -> list[str]:
    try:
        check_equal(store, export)
    except AssertionError as error:
        return [str(error)[:500]]
    return []


def _until(done: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _LIMIT_S
    while not done():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {_LIMIT_S:.0f} s: {what}")
        time.sleep(0.05)
