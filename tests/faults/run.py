"""One fault run: the instance works while its processes are killed or paused; afterwards every
invariant is checked from outside.

Meanwhile readers ask the workers by key, row, latest, index and log, and the offsets of every group
are looked at. All that anyone was shown is one ledger.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.config.model import Config
from cellfeed.consumers.billing.card_provider import SandboxCardProvider
from cellfeed.consumers.billing.charge_keys import GROUP
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.store.errors import NotFound
from cellfeed.store.http.client import Client
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.version import IndexVersion
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from cellfeed.verify.topic_place import TopicPlace
from cellfeed.verify.warehouse_place import WarehousePlace
from tests.faults.invariants import (
    Log,
    Seen,
    Violations,
    check_gapless,
    check_log,
    check_once_per_cell,
    check_reader,
    check_run_or_parked,
    check_watermarks,
    merge,
    verdict,
)
from tests.faults.key_readers import (
    INDEX_PATH,
    PATHS,
    IndexQuestion,
    KeyReader,
    look_at_all,
    reading,
)
from tests.faults.ledger import Ledger, Put
from tests.faults.offset_watch import watching_offsets
from tests.faults.shown import Shown
from tests.faults.system import LEASE_S, SHARDS, System
from tests.faults.workload import KafkaReader, Writers, read_log
from tests.support.kept_index import differences

KINDS = ("worker", "gateway", "triggers", "index", "warehouse", "pause", "all")
FAULTS_IN_A_RUN = 4
RECOVERY_MAX_S = 10.0 + LEASE_S
"""I21: everything is going again ten seconds after a fault heals, and a killed trigger worker's
lease."""

CALL_MAX_S = 5.0 + 2.0
"""I21: the client's own deadline, and the slack of a busy machine."""

CATCH_UP_S = 60.0
PUT_PAUSE_S = 0.004
PUT_PAUSE_BRIEF_S = 0.1
"""The wait of each of the four writers behind a put: in the suite some forty cells a second are
under way when a fault comes, not more. Eight processes handle each."""

INDEX = parse_definition(
    """
table: trips_by_payment
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: payment, type: string}, {field: fare_cents, type: int}]
"""
)


@dataclass
class FaultRun:
    """The result of a run; ``as_json`` is its summary line."""

    kind: str
    seed: int
    witnessed: list[str] = field(default_factory=list)
    operations_inside: int = 0
    recovery_s: list[float] = field(default_factory=list)
    violations: Violations = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return (
            bool(self.witnessed)
            and self.operations_inside > 0
            and not any(self.violations.values())
        )

    def add(self, other: FaultRun) -> None:
        """The result of another part of the run."""
        self.witnessed += other.witnessed
        self.operations_inside += other.operations_inside
        self.recovery_s += other.recovery_s
        self.violations = merge(self.violations, other.violations)

    def __str__(self) -> str:
        """All of it in a line: pytest cuts a dict short, and with it the violations."""
        return json.dumps(self.as_json())

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "seed": self.seed,
            "passed": self.passed,
            "witnessed": self.witnessed,
            "operations_inside": self.operations_inside,
            "recovery_s": [round(each, 2) for each in self.recovery_s],
            "violations": {name: found[:5] for name, found in self.violations.items() if found},
        }


def run_faults(kind: str, seed: int, directory: Path, put_pause_s: float = PUT_PAUSE_S) -> FaultRun:
    """Runs and checks. Which process is hit, when and for how long follows from the seed."""
    chance = random.Random(f"{kind}-{seed}")
    result = FaultRun(kind, seed)
    system, ledger = System(directory), Ledger()
    reader: KafkaReader | None = None
    try:
        system.up()
        with open_datastore(system.config, system.run_dir.path) as datastore:
            version = datastore.indexes.version(datastore.indexes.catalog.create(INDEX))
        reader = KafkaReader(system.bootstrap(), "trips", SHARDS)
        writers = Writers(system.urls(), ledger, seed, put_pause_s)
        reader.start()
        writers.start()
        watermarks: list[dict[int, int]] = []
        shown = Shown()
        with (
            Client(system.urls(), "trips") as client,
            watching_offsets(system) as offsets,
            ExitStack() as looking,
        ):
            by_key = KeyReader(
                "reader by key",
                client,
                ledger,
                shown,
                random.Random(f"{kind}-{seed}-reader"),
                question=_in_index,
            )
            looking.enter_context(reading(by_key))
            for _ in range(FAULTS_IN_A_RUN):
                time.sleep(chance.uniform(0.2, 0.8))
                began_s = time.monotonic()
                result.witnessed.append(_fault(system, kind, chance))
                healed_s = time.monotonic()
                result.operations_inside += ledger.acknowledged_between(began_s, healed_s)
                result.recovery_s.append(_recovered(ledger, reader, healed_s))
                watermarks.append({shard: head.watermark for shard, head in client.heads().items()})
            writers.stop()
            log = read_log(client)
            watermarks.append({shard: len(cells) for shard, cells in log.items()})
            put_here = {
                shard: [cell for cell in cells if cell.column_name != "STATUS"]
                for shard, cells in log.items()
            }
            result.violations = merge(
                check_log(ledger, put_here), check_gapless(log), check_watermarks(watermarks)
            )
            result.violations = merge(
                result.violations, _check_outlets(system, client, reader, shown)
            )
            result.violations = merge(
                result.violations,
                verdict("the index", lambda: {"I18": _index_differences(system, version)}),
            )
            looking.close()
            look_at_all(by_key)
            shown.answers(ledger)
            paths = (
                *PATHS,
                INDEX_PATH,
                "the answer of a put",
                "the log in the end",
                "consumer",
                "warehouse",
            )
            result.violations = merge(
                result.violations,
                by_key.violations(),
                shown.violations(ledger, ("BASE",), paths),
                offsets.violations(
                    {shard: head.watermark for shard, head in client.heads().items()}
                ),
            )
            slow = [
                f"recovery took {each:.1f} s" for each in result.recovery_s if each > RECOVERY_MAX_S
            ]
            if writers.longest_call_s > CALL_MAX_S:
                slow.append(
                    f"a call took {writers.longest_call_s:.1f} s, its deadline was {CALL_MAX_S}"
                )
            result.violations = merge(result.violations, {"I21": slow})
    finally:
        if reader is not None:
            reader.stop()
        system.down()
    return result


def _fault(system: System, kind: str, chance: random.Random) -> str:
    """One fault and its healing; the witnessed part of it."""
    target_kind = (
        chance.choice(["worker", "gateway", "triggers", "index", "warehouse"])
        if kind in ("pause", "all")
        else kind
    )
    name = chance.choice(system.names(target_kind))
    if kind == "pause" or (kind == "all" and chance.random() < 0.3):
        seconds = LEASE_S * chance.uniform(0.5, 1.8)
        return f"{name}: pid {system.pause(name, seconds)} stopped for {seconds:.1f} s"
    killed = system.kill(name)
    time.sleep(chance.uniform(0.1, 1.0))
    started = system.start(name)
    if started == killed:
        raise RuntimeError(f"{name} has the pid that was killed: the fault did not happen")
    return f"{name}: pid {killed} killed, pid {started} started"


def _recovered(ledger: Ledger, reader: KafkaReader, healed_s: float) -> float:
    """Seconds until a put that began after the healing is acknowledged and read by the consumer;
    the limit and more when it is not."""
    deadline_s = healed_s + 2 * RECOVERY_MAX_S
    while time.monotonic() < deadline_s:
        fresh = [put for put in list(ledger.puts) if put.begun_s >= healed_s and put.acknowledged]
        if fresh and any(
            reader.read[put.shard] and reader.read[put.shard][-1].added_id >= put.added_id
            for put in fresh[:20]
            if put.shard is not None and put.added_id is not None
        ):
            return time.monotonic() - healed_s
        time.sleep(0.02)
    return 2 * RECOVERY_MAX_S


def _in_index(put: Put) -> IndexQuestion:
    body = json.loads(put.body_json)
    return IndexQuestion(
        INDEX.table,
        body["payment"],
        [("fare_cents", "=", body["fare_cents"])],
        ("payment", "fare_cents"),
    )


def _check_outlets(system: System, client: Client, reader: KafkaReader, shown: Shown) -> Violations:
    """I3, I6–I8 at the consumer; I14 and I16 at billing; I16 and I17 at the warehouse; once
    everything has come to the end."""
    violations: Violations = {}
    settled = _wait(lambda: _billing_done(system))
    ends = {shard: head.watermark for shard, head in client.heads().items()}
    if not settled:
        violations["I21"] = ["billing has not come to the end of the logs"]
    if not reader.wait_for(ends, CATCH_UP_S):
        violations["I8"] = ["the consumer has not come to the end of the logs"]
    log = read_log(client)
    shown.log("the log in the end", log)
    shown.log("consumer", reader.read)
    violations = merge(
        violations,
        check_reader(log, reader.read, "consumer"),
        {"I7": list(reader.errors)},
        check_billing(system.billing, system.config, system.run_dir.path, log),
    )
    return merge(
        violations,
        verdict("the warehouse", lambda: _check_warehouse(system, client, log, ends, shown)),
    )


def _check_warehouse(
    system: System, client: Client, log: Log, ends: dict[int, int], shown: Shown
) -> Violations:
    table = _table_at(system, ends)
    if table is None:
        return {"I16": ["the warehouse has not come to the end of the logs"]}
    shown.log("warehouse", rows := _rows(table, ends))
    found = {
        "I16": [each for told in check_reader(log, rows, "warehouse").values() for each in told]
    }
    return merge(found, verdict("verify", lambda: _check_digests(system, client)))


def _rows(table: WarehouseTable, ends: dict[int, int]) -> dict[int, list[Seen]]:
    return {
        shard: [
            Seen(row.added_id, UUID(bytes=row.row_key), row.column_name, row.ref_key, row.body_json)
            for row in table.rows(shard)
            if row.added_id < ends[shard]
        ]
        for shard in ends
    }


def _check_digests(system: System, client: Client) -> Violations:
    report = verify(
        [
            StorePlace(client),
            TopicPlace(system.bootstrap(), "trips"),
            WarehousePlace(system.run_dir.inside("warehouse")),
        ]
    )
    return {
        "I17": [
            f"shard {each.shard} differs"
            for each in report.shards
            if not (each.equal and each.level)
        ]
    }


def check_billing(billing: Path, config: Config, directory: Path, log: Log) -> Violations:
    """I2, I14 and I16 of the billing trigger whose charges are in the folder ``billing``."""
    trips = {
        str(cell.row_key): f"{GROUP}-{shard}-{cell.added_id}"
        for shard, cells in log.items()
        for cell in cells
        if cell.column_name == "BASE"
    }
    charges = [
        charge.idempotency_key
        for charge in SandboxCardProvider(billing / "charges.sqlite3").charges()
    ]
    statuses = [cell for cells in log.values() for cell in cells if cell.column_name == "STATUS"]
    invented = [
        f"{cell.triple} belongs to no trip" for cell in statuses if str(cell.row_key) not in trips
    ]
    settled = [trips[str(cell.row_key)] for cell in statuses if str(cell.row_key) in trips]
    with open_datastore(config, directory) as datastore:
        origin = datastore.origin_id
        parked = [
            f"{GROUP}-{cell.partition}-{cell.added_id}"
            for cell in ParkedCells(datastore.state).all(GROUP)
        ]
    base = [cell for cells in log.values() for cell in cells if cell.column_name == "BASE"]
    cards = [
        f"{GROUP}-{origin}-{cell.row_key}-BASE-{cell.ref_key}"
        for cell in base
        if b'"credit card"' in cell.body_json
    ]
    return merge(
        {"I2": invented},
        check_once_per_cell(cards, charges, "charge"),
        check_run_or_parked(trips.values(), settled, parked),
    )


def _index_differences(system: System, version: IndexVersion) -> list[str]:
    with open_datastore(system.config, system.run_dir.path) as datastore:
        datastore.indexes.positions = index_positions(
            StoreCoordinator(datastore.state), datastore.name
        )
        return differences(datastore, version)


def _billing_done(system: System) -> bool:
    with open_datastore(system.config, system.run_dir.path) as datastore:
        offsets = StoreCoordinator(datastore.state).fetch_offsets(GROUP)
        return all(
            ("trips", shard) in offsets and offsets[("trips", shard)].offset >= head.watermark
            for shard, head in datastore.heads().items()
            if head.watermark
        )


def _table_at(system: System, ends: dict[int, int]) -> WarehouseTable | None:
    found: list[WarehouseTable] = []

    def reached() -> bool:
        try:
            table = WarehouseTable(system.run_dir.inside("warehouse"))
        except NotFound:
            return False
        ids = table.next_ids()
        found[:] = [table]
        return all(ids.get(shard, 0) >= end for shard, end in ends.items())

    return found[0] if _wait(reached) and found else None


def _wait(done: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + CATCH_UP_S
    while time.monotonic() < deadline_s:
        if done():
            return True
        time.sleep(0.1)
    return False
