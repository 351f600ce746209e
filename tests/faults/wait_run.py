"""``waits``: puts are waited for at a trigger, an index, a consumer group and an export. Meanwhile
the processes of the instance are killed and paused, so that their twins take over. No answer comes
before the effect at the outlet (``wait_evidence.py``).

I21: after a fault every kind of outlet answers in time for cells put then, and no wait runs out.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.declaration import Export
from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.model import (
    Config,
    DatastoreConfig,
    IndexWorkersConfig,
    TriggersConfig,
    WorkerConfig,
)
from cellfeed.store.cells.token import Token
from cellfeed.store.errors import CellfeedError, NotFound, StorageUnavailable, WaitTimedOut
from cellfeed.store.http.client import Client
from cellfeed.store.indexes.definition_file import parse_definition
from tests.faults.invariants import merge
from tests.faults.run import RECOVERY_MAX_S, FaultRun
from tests.faults.system import LEASE_S, SHARDS, System
from tests.faults.trigger_system import FaultDidNotHappen
from tests.faults.wait_evidence import CONSUMERS, Batch, Consuming, Evidence
from tests.faults.waited_program import GROUP
from tests.support.kept_index import built
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

WAIT_KINDS: Final = ("waits",)
TOPIC: Final = "exported"
INDEX: Final = parse_definition("""
table: cells_by_batch
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: batch, type: string}]
""")
_NAMES: Final[Mapping[str, str]] = {
    "trigger": GROUP,
    "index": INDEX.table,
    "group": CONSUMERS,
    "export": TOPIC,
}
_NAMESPACE: Final = UUID("8c9e64ba-3f0a-5d2f-8f6e-0d6a4e1b7c55")
_WAIT_S: Final = 60.0


class WaitScale(NamedTuple):
    """At least ``puts`` in batches of ``batch``, by ``writers`` threads; they rest ``rest_s``
    between two batches. At least ``faults`` faults."""

    puts: int
    batch: int
    writers: int
    faults: int
    rest_s: float = 0.0


BRIEF: Final = WaitScale(puts=300, batch=10, writers=2, faults=3, rest_s=0.1)
FULL: Final = WaitScale(puts=25_000, batch=25, writers=4, faults=12)


class WaitSystem(System):
    """Two of each kind of process, but for the exporter."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        super().__init__(directory)
        self.effects = directory / "effects"
        self.effects.touch()
        self.write(
            Config(
                datastore=DatastoreConfig(shards=SHARDS),
                workers=[WorkerConfig(name=f"worker-{each}", port=0) for each in (1, 2)],
                gateways=[
                    GatewayProcessConfig(
                        name=f"gateway-{each}", port=0, registry_port=0, group_initial_delay_s=0
                    )
                    for each in (1, 2)
                ],
                triggers=[
                    TriggersConfig(
                        app="tests.faults.waited_program:program",
                        name=GROUP,
                        processes=2,
                        lease_s=LEASE_S,
                        settings={"file": str(self.effects)},
                    )
                ],
                indexes=[IndexWorkersConfig(processes=2, lease_s=LEASE_S)],
                exports=[
                    Export(
                        TOPIC, bootstrap, topic=TOPIC, replication_factor=1, lease_s=LEASE_S
                    ).check()
                ],
            )
        )

    def bootstrap(self) -> str:
        ports = [self.run_dir.process(name).ports["kafka"] for name in self.names("gateway")]
        return ",".join(f"127.0.0.1:{port}" for port in ports)


@dataclass
class Puts:
    """The batches of a run, put and waited for by threads."""

    client: Client
    evidence: Evidence
    seed: int
    scale: WaitScale
    answered: list[tuple[str, float, float]] = field(default_factory=list)
    """Of each answer the kind, when its batch began, and when it came, by the monotonic clock."""
    places: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _next: int = 0
    _enough: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(self.scale.writers)
        ]
        for each in self._threads:
            each.start()

    @property
    def waited_for(self) -> int:
        """Cells that every kind of outlet has answered for."""
        answers = Counter(kind for kind, *_ in list(self.answered))
        return min(answers[kind] for kind in _NAMES) * self.scale.batch

    def stop(self) -> None:
        """Ends behind the batches under way, once there were enough puts."""
        self._enough.set()
        for each in self._threads:
            each.join()

    def _work(self, writer: int) -> None:
        chance = random.Random(f"{self.seed}-{writer}")
        try:
            while (number := self._take()) is not None:
                self._batch(number, chance)
                time.sleep(self.scale.rest_s)
        except Exception as error:
            self.wrong["I21"].append(f"writer {writer} ended: {type(error).__name__}: {error}")

    def _take(self) -> int | None:
        with self._lock:
            number, self._next = self._next, self._next + 1
        done = self._enough.is_set() and number * self.scale.batch >= self.scale.puts
        return None if done else number

    def _batch(self, number: int, chance: random.Random) -> None:
        name, begun_s = f"{self.seed}-{number}", time.monotonic()
        cells: list[Any] = [
            (uuid5(_NAMESPACE, f"{name}-{each}"), "BASE", 1, {"batch": name, "n": each})
            for each in range(self.scale.batch)
        ]
        deadline_s = begun_s + _WAIT_S
        results = self.client.put_cells(cells)
        while not all(each.token for each in results):
            if time.monotonic() > deadline_s:
                raise StorageUnavailable(f"batch {name} was not put: {results[0]}")
            time.sleep(0.05)
            results = self.client.put_cells(cells)
        token = Token.of(results)
        batch = Batch(name, frozenset(cell[0] for cell in cells), token.places)
        with self._lock:
            self.places[name] = [(each.shard or 0, each.added_id or 0) for each in results]
        for kind in chance.sample(list(_NAMES), len(_NAMES)):
            self._wait(kind, batch, token)
            self.answered.append((kind, begun_s, time.monotonic()))

    def _wait(self, kind: str, batch: Batch, token: Token) -> None:
        wanted: Any = {kind: _NAMES[kind]}
        deadline_s = time.monotonic() + _WAIT_S
        while True:
            try:
                passed = self.client.wait_for(token, timeout_s=_WAIT_S, **wanted)
                break
            except WaitTimedOut as error:
                self.wrong["I21"].append(str(error))
                return
            except CellfeedError as error:  # both workers are away, or one of them is full
                if not error.retriable or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
        self.evidence.take(kind, batch)
        if not passed.handled:
            self.wrong["I14"].append(f"{passed}: nothing was poison, and nobody moved it")


def run_wait_faults(kind: str, seed: int, directory: Path, scale: WaitScale = FULL) -> FaultRun:
    """Runs and checks. The target and the fault follow from the seed."""
    chance, result = random.Random(f"{kind}-{seed}"), FaultRun(kind, seed)
    with ExitStack() as stack:
        kafka = Kafka(directory / "kafka")
        stack.callback(kafka.kill)
        kafka.start()
        system = WaitSystem(directory, kafka.bootstrap)
        stack.callback(system.down)
        system.up()
        datastore = stack.enter_context(open_datastore(system.config, system.run_dir.path))
        record = datastore.indexes.catalog.create(INDEX)
        built(datastore, INDEX.table, record.number)
        coordinator = stack.enter_context(closing(StoreCoordinator(datastore.state)))
        evidence = Evidence(datastore, coordinator, system.effects, INDEX.table, TOPIC)
        evidence.at_broker(kafka.bootstrap)
        consumer = Consuming(system.bootstrap(), datastore.name)
        consumer.start()
        stack.callback(consumer.stop)
        client = stack.enter_context(Client(system.urls(), "trips", timeout_s=10.0))
        _await_outlets(client)
        puts = Puts(client, evidence, seed, scale)
        puts.start()
        try:
            while puts.waited_for < scale.puts or len(result.witnessed) < scale.faults:
                time.sleep(chance.uniform(0.1, 0.5))
                _one_fault(system, puts, chance, result)
            puts.stop()
            evidence.judge(kafka.bootstrap, puts.places)
        except FaultDidNotHappen as error:
            result.witnessed.clear()
            result.violations = {"no fault": [str(error)]}
        else:
            result.witnessed.append(f"{puts.waited_for} cells were waited for at each outlet")
        finally:
            puts.stop()
        slow = [
            f"recovery took {each:.1f} s" for each in result.recovery_s if each > RECOVERY_MAX_S
        ]
        result.violations = merge(
            result.violations, dict(puts.wrong), {"early": evidence.early, "I21": slow}
        )
    return result


def _await_outlets(client: Client) -> None:
    """Until each outlet is known, and passes a cell."""
    [result] = client.put_cells([(uuid5(_NAMESPACE, "first"), "BASE", 1, {"batch": "first"})])

    def passed(kind: str) -> bool:
        wanted: Any = {kind: _NAMES[kind]}
        try:
            return client.wait_for(result, timeout_s=1, **wanted).handled
        except (NotFound, WaitTimedOut):
            return False

    for kind in _NAMES:
        wait_until(lambda kind=kind: passed(kind), f"the {kind} works", _WAIT_S)  # type: ignore[misc]


def _one_fault(system: WaitSystem, puts: Puts, chance: random.Random, result: FaultRun) -> None:
    target = chance.choice(["worker", "gateway", "triggers", "index", "export"])
    name, begun_s = chance.choice(system.names(target)), time.monotonic()
    if chance.random() < 0.3:
        seconds = LEASE_S * chance.uniform(0.5, 1.8)
        pid = system.pause(name, seconds)
        result.witnessed.append(f"{name}: pid {pid} stopped for {seconds:.1f} s")
    else:
        killed = system.kill(name)
        time.sleep(chance.uniform(0.0, 1.5 * LEASE_S))
        if (started := system.start(name)) == killed:
            raise FaultDidNotHappen(f"{name} has the pid that was killed")
        result.witnessed.append(f"{name}: pid {killed} killed, pid {started} started")
    healed_s = time.monotonic()
    result.operations_inside += sum(begun_s <= at_s <= healed_s for *_, at_s in puts.answered)
    while time.monotonic() < healed_s + 2 * RECOVERY_MAX_S:
        if {kind for kind, put_s, _ in list(puts.answered) if put_s > healed_s} == _NAMES.keys():
            break
        time.sleep(0.05)
    result.recovery_s.append(time.monotonic() - healed_s)
