"""``waits``: puts are waited for at a trigger, an index, a consumer group, an export and a lake's
table. Meanwhile the processes of the instance are killed and paused, so that their twins take over.
No answer comes before the effect at the outlet (``wait_evidence.py``). ``waits-promoted``: the same
over a cluster, whose master is killed and replaced as well.

I21: after a fault every kind of outlet answers in time for cells put then, and no wait runs out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid5

from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.declaration import Export
from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.lake import LakeConfig
from cellfeed.config.model import (
    Config,
    DatastoreConfig,
    IndexWorkersConfig,
    TriggersConfig,
    WorkerConfig,
)
from cellfeed.consumers.lake.open_table import Format
from cellfeed.store.errors import NotFound, WaitTimedOut
from cellfeed.store.http.client import Client
from tests.faults.invariants import merge
from tests.faults.lake_evidence import LAKE, LakeEvidence
from tests.faults.run import RECOVERY_MAX_S, FaultRun
from tests.faults.system import LEASE_S, SHARDS, System
from tests.faults.trigger_system import FaultDidNotHappen
from tests.faults.wait_evidence import Consuming, Evidence
from tests.faults.wait_storage import wait_storage
from tests.faults.waited_program import GROUP
from tests.faults.waited_puts import (
    FULL,
    INDEX,
    NAMES,
    NAMESPACE,
    TOPIC,
    WAIT_S,
    Puts,
    WaitScale,
)
from tests.support.kept_index import built
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

ON_CLUSTER: Final = "waits-promoted"
WAIT_KINDS: Final = ("waits", ON_CLUSTER)


class WaitSystem(System):
    """Two of each kind of process, but for the exporter and the lake's loader."""

    def __init__(
        self, directory: Path, bootstrap: str, datastore: DatastoreConfig, lake_format: Format
    ) -> None:
        super().__init__(directory)
        self.effects = directory / "effects"
        self.effects.touch()
        self.write(
            Config(
                datastore=datastore,
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
                lakes=[LakeConfig(LAKE, lake_format)],
            )
        )

    def bootstrap(self) -> str:
        ports = [self.run_dir.process(name).ports["kafka"] for name in self.names("gateway")]
        return ",".join(f"127.0.0.1:{port}" for port in ports)


def run_wait_faults(kind: str, seed: int, directory: Path, scale: WaitScale = FULL) -> FaultRun:
    """Runs and checks. The target and the fault follow from the seed."""
    chance, result = random.Random(f"{kind}-{seed}"), FaultRun(kind, seed)
    with ExitStack() as stack:
        storage = stack.enter_context(wait_storage()) if kind == ON_CLUSTER else None
        datastore_config = storage.config if storage else DatastoreConfig(shards=SHARDS)
        lake_format: Format = chance.choice(("iceberg", "delta"))
        kafka = Kafka(directory / "kafka")
        stack.callback(kafka.kill)
        kafka.start()
        system = WaitSystem(directory, kafka.bootstrap, datastore_config, lake_format)
        stack.callback(system.down)
        system.up()
        datastore = stack.enter_context(open_datastore(system.config, system.run_dir.path))
        record = datastore.indexes.catalog.create(INDEX)
        built(datastore, INDEX.table, record.number)
        coordinator = stack.enter_context(closing(StoreCoordinator(datastore.state)))
        lake = LakeEvidence(lake_format, system.run_dir.path / LAKE)
        evidence = Evidence(datastore, coordinator, system.effects, INDEX.table, TOPIC, lake)
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
                if storage is not None and chance.random() < 0.4:
                    _watched(partial(storage.fail_over, datastore, chance), puts, result)
                else:
                    _watched(partial(_one_fault, system, chance), puts, result)
            puts.stop()
            evidence.judge(kafka.bootstrap, puts.places)
        except FaultDidNotHappen as error:
            result.witnessed.clear()
            result.violations = {"no fault": [str(error)]}
        else:
            result.witnessed.append(
                f"{puts.waited_for} cells were waited for at each outlet, the lake being"
                f" {lake_format}"
            )
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
    [result] = client.put_cells([(uuid5(NAMESPACE, "first"), "BASE", 1, {"batch": "first"})])

    def passed(kind: str) -> bool:
        wanted: Any = {kind: NAMES[kind]}
        try:
            return client.wait_for(result, timeout_s=1, **wanted).handled
        except (NotFound, WaitTimedOut):
            return False

    for kind in NAMES:
        wait_until(lambda kind=kind: passed(kind), f"the {kind} works", WAIT_S)  # type: ignore[misc]


def _one_fault(system: WaitSystem, chance: random.Random) -> str:
    target = chance.choice(["worker", "gateway", "triggers", "index", "export", "lake"])
    name = chance.choice(system.names(target))
    if chance.random() < 0.3:
        seconds = LEASE_S * chance.uniform(0.5, 1.8)
        return f"{name}: pid {system.pause(name, seconds)} stopped for {seconds:.1f} s"
    killed = system.kill(name)
    time.sleep(chance.uniform(0.0, 1.5 * LEASE_S))
    if (started := system.start(name)) == killed:
        raise FaultDidNotHappen(f"{name} has the pid that was killed")
    return f"{name}: pid {killed} killed, pid {started} started"


def _watched(fault: Callable[[], str], puts: Puts, result: FaultRun) -> None:
    """Does a fault, and waits until each outlet has answered for a batch put behind it."""
    begun_s = time.monotonic()
    result.witnessed.append(fault())
    healed_s = time.monotonic()
    result.operations_inside += sum(begun_s <= at_s <= healed_s for *_, at_s in puts.answered)
    while time.monotonic() < healed_s + 2 * RECOVERY_MAX_S:
        if {kind for kind, put_s, _ in list(puts.answered) if put_s > healed_s} == NAMES.keys():
            break
        time.sleep(0.05)
    result.recovery_s.append(time.monotonic() - healed_s)
