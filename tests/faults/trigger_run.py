"""One fault run on a trigger group: taxi trips are put and billed while its processes and its
ZooKeeper fail; afterwards all is checked from outside.

I14, I16, I18 (of an index that is kept meanwhile, over the same ZooKeeper), I20 and I21, as
``docs/invariants.md`` has them; the expected bills are worked out from the CSV file, not from the
cells.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from cellfeed.bridge.triggers.offsets.kept_offsets import last_known
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.consumers.billing.app import BASE_COLUMN, STATUS_COLUMN
from cellfeed.consumers.billing.card_provider import SandboxCardProvider
from cellfeed.consumers.billing.charge_keys import GROUP
from cellfeed.loading.records import FileFormat, read_records
from cellfeed.loading.taxi import CARD, cells_of_trip, shipped_csv, trip_row_key
from cellfeed.store.api import CellToPut
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.definition_file import parse_definition
from tests.faults.billing_program import POISONS
from tests.faults.invariants import Violations, check_once_per_cell, check_run_or_parked, merge
from tests.faults.run import FaultRun
from tests.faults.trigger_faults import FAULTS, FULL, REPEATED, Scale, Stage
from tests.faults.trigger_invariants import (
    Place,
    Sample,
    check_generations,
    check_offsets_behind_work,
    check_offsets_rise,
    check_overtaken,
    check_run_by_one,
)
from tests.faults.trigger_system import HOSTS, SHARDS, FaultDidNotHappen, TriggerSystem, until
from tests.faults.trigger_time_faults import IN_STORE, TIME_FAULTS
from tests.faults.trigger_watch import Calls, Feeder, Watch
from tests.support.kept_index import differences, index_worker, made_index
from tests.support.local_zookeeper import ZooKeeper

_ALL: Final = {**FAULTS, **TIME_FAULTS}
TRIGGER_KINDS = tuple(_ALL)
RECOVERY_MAX_S = 10.0
"""I21: everything is going again ten seconds after a fault heals, and the session of anybody who
was killed or cut off."""

SETTLE_S = 120.0
INDEX = parse_definition("""
table: trips_by_payment
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: payment, type: string}, {field: pickup, type: string}]
""")
_LEASE_S = 1.5
_LONG_LEASE_S = 20.0
"""No busy machine lets it run out."""

_HANDED_OVER = frozenset({"trigger-joins", "trigger-rolling"})
"""Kinds in which no shard is ever taken over, so that no cell at all may run twice."""

_OVERTAKEN = frozenset({"trigger-pause", "zookeeper-cut", "zookeeper-one-way"})
"""Kinds in which a process lives on that has lost its shards."""

_POISON_TIMEOUT_S = 2.0
_RUN_S = 0.005
_LONG_RUN_S = 0.05
"""So that cells are under way when their shard is to change hands, or is taken over."""

_STEP_S = 10.0
"""The longest join, leave, or restart on a busy machine."""


class Trip(NamedTuple):
    """A trip as the CSV has it. ``cents`` are those of its total, worked out with decimal
    arithmetic."""

    row_key: UUID
    by_card: bool
    cents: int
    cells: list[CellToPut]


@dataclass(frozen=True)
class Books:
    """The cells, calls and charges of the store, the trigger and the card provider when all is
    done."""

    base: Mapping[UUID, Cell]
    statuses: list[Cell]
    parked: frozenset[Place]

    @classmethod
    def read(cls, datastore: Datastore) -> Books:
        cells: list[Cell] = []
        for shard in range(SHARDS):
            location = 0
            while (piece := datastore.get_cells_for_shard(shard, location, 5_000)).cells:
                cells += piece.cells
                location = piece.next_location
        base = {cell.row_key: cell for cell in cells if cell.column_name == BASE_COLUMN}
        parked = frozenset(
            (each.partition, each.added_id) for each in ParkedCells(datastore.state).all(GROUP)
        )
        return cls(base, [cell for cell in cells if cell.column_name == STATUS_COLUMN], parked)

    def places(self) -> set[Place]:
        return {(cell.shard, cell.added_id) for cell in self.base.values()}


def run_trigger_faults(
    kind: str, seed: int, directory: Path, scale: Scale = FULL, zookeeper: ZooKeeper | None = None
) -> FaultRun:
    """Runs and checks. The target, the moment and the length follow from the seed. ``zookeeper``:
    one that runs, for kinds that leave it alone."""
    chance = random.Random(f"{kind}-{seed}")
    result = FaultRun(kind, seed)
    trips = _trips(chance, scale, poisoned=kind == "trigger-poison")
    settings: dict[str, object] = {
        "run_s": _LONG_RUN_S if kind in _HANDED_OVER | _OVERTAKEN else _RUN_S
    }
    if kind == "trigger-poison":
        settings |= {"timeout_s": _POISON_TIMEOUT_S, "ended_tries": 2}
    lease_s = _LONG_LEASE_S if kind in _HANDED_OVER else _LEASE_S
    with TriggerSystem(
        directory,
        lease_s=lease_s,
        settings=settings,
        zookeeper=zookeeper,
        in_store=kind in IN_STORE,
    ) as system:
        watch, calls = Watch(system.coordinator), Calls(system.billing)
        feeder = Feeder(system.datastore, [trip.cells for trip in trips], _per_s(kind, scale))
        stage = Stage(system, watch, calls, feeder, chance, scale)
        indexing = ExitStack()
        try:
            system.up()
            indexing.enter_context(index_worker(system.datastore, coordination=system.coordination))
            version = made_index(system.datastore, INDEX)
            watch.start()
            feeder.start()
            until(lambda: calls.ended() > HOSTS, "the work is under way")
            if kind in ("zookeeper-empty", "zookeeper-rollback"):
                state, shards = system.datastore.state, range(system.datastore.shards)
                kept = partial(last_known, state, version.group, system.datastore.name, shards)
                until(lambda: len(kept()) == len(shards), "the index's offsets are kept")
            for _ in range(scale.faults if kind in REPEATED else 1):
                time.sleep(chance.uniform(0.1, 0.5))
                _one_fault(kind, stage, feeder, result)
                if kind in ("zookeeper-empty", "zookeeper-rollback"):
                    system.ask(
                        "offsets",
                        "set",
                        version.group,
                        "kept",
                        "--reason",
                        "ZooKeeper came back empty, or was restored",
                    )
            feeder.finish()
            result.violations = {
                "I21": (
                    []
                    if _in_time(system.caught_up)
                    else ["billing has not come to the end of the logs"]
                )
            }
            result.violations = merge(result.violations, _check_run_or_parked(system, trips))
            result.violations = merge(
                result.violations, {"I18": differences(system.datastore, version)}
            )
            parked = Books.read(system.datastore).parked
            if kind == "trigger-poison":
                result.violations = merge(result.violations, {"I14": _cured(system)})
            watch.stop()
            slow = [
                f"recovery took {each:.1f} s"
                for each in result.recovery_s
                if each > RECOVERY_MAX_S + system.session_s
            ]
            result.violations = merge(
                result.violations,
                {"I14": stage.violations, "I21": slow},
                _check_group(kind, stage, parked),
                _check_charges(system, trips),
            )
        except FaultDidNotHappen as error:
            result.witnessed.clear()
            result.violations = merge(result.violations, {"no fault": [str(error)]})
        finally:
            feeder.stop()
            watch.stop()
            indexing.close()
    return result


def _one_fault(kind: str, stage: Stage, feeder: Feeder, result: FaultRun) -> None:
    began_ns = time.monotonic_ns()
    stage.healed_ns = 0
    result.witnessed += _ALL[kind](stage)
    healed_ns = stage.healed_ns or time.monotonic_ns()
    recovered_s = _recovered(stage.system, stage.calls, healed_ns / 1e9)
    ended = [call.ended_ns for call in stage.calls.read() if call.ended_ns is not None]
    result.operations_inside += sum(
        began_ns <= at_ns <= healed_ns for at_ns in [*feeder.put_at_ns, *ended]
    )
    result.recovery_s.append(recovered_s)


def _per_s(kind: str, scale: Scale) -> float:
    """Trips a second: there are some left for as long as the fault lasts."""
    steps = {
        "trigger-joins": scale.joins,
        "trigger-rolling": HOSTS,
        "zookeeper-rollback": 2 * HOSTS,
    }.get(kind)
    return min(scale.per_s, scale.trips / (steps * _STEP_S)) if steps else scale.per_s


def _trips(chance: random.Random, scale: Scale, *, poisoned: bool) -> list[Trip]:
    """Trips of the shipped file in an order of the seed's; the poisoned ones are among the first
    half."""
    found = []
    for record in read_records(shipped_csv(), FileFormat.CSV):
        assert record.fields is not None
        fields = record.fields
        found.append(
            Trip(
                trip_row_key(fields),
                fields["payment"] == CARD,
                int(Decimal(fields["total"]) * 100),
                cells_of_trip(fields),
            )
        )
    chosen = chance.sample(found, scale.trips)
    if poisoned:
        numbers = iter(
            chance.sample(range(scale.trips // 10, scale.trips // 2), len(POISONS) * scale.poisons)
        )
        for poison in list(POISONS) * scale.poisons:
            first = (trip := chosen[next(numbers)]).cells[0]
            trip.cells[0] = first._replace(body={**first.body, "poison": poison})
    return chosen


def _recovered(system: TriggerSystem, calls: Calls, healed_s: float) -> float:
    """Seconds until every host has its share again and every shard gets on, or has nothing left to
    do; the limit and more when that is not so."""
    limit_s = 2 * (RECOVERY_MAX_S + system.session_s)
    heads = {shard: head.watermark for shard, head in system.datastore.heads().items()}
    while (after_s := time.monotonic() - healed_s) < limit_s:
        if system.is_settled(HOSTS):
            going = {
                call.shard
                for call in calls.read()
                if call.ended_ns is not None and call.ended_ns > healed_s * 1e9
            }
            saved = {
                shard: each.offset
                for (_, shard), each in system.coordinator.fetch_offsets(GROUP).items()
            }
            if all(shard in going or saved.get(shard, 0) >= head for shard, head in heads.items()):
                return after_s
        time.sleep(0.1)
    return limit_s


def _cured(system: TriggerSystem) -> list[str]:
    """Poison cells are harmless from then on, and somebody has the parked cells tried again; the
    cells that remain parked."""
    (system.billing / "antidote").touch()
    system.ask("parked", "retry", GROUP)
    state = system.datastore.state
    if _in_time(lambda: not ParkedCells(state).all(GROUP)):
        return []
    return [
        f"cell {cell.cell_id} is still parked after it was cured and tried again:"
        f" {cell.error[-200:]}"
        for cell in ParkedCells(state).all(GROUP)
    ]


# --- checks ---------------------------------------------------------------------------------------


def _check_run_or_parked(system: TriggerSystem, trips: list[Trip]) -> Violations:
    """I14 from the cells: a trip has its STATUS, or is parked."""
    books = Books.read(system.datastore)
    names = {row_key: f"{cell.shard}/{cell.added_id}" for row_key, cell in books.base.items()}
    settled = [names[cell.row_key] for cell in books.statuses if cell.row_key in names]
    lost = [
        f"trip {trip.row_key} was put and is not there"
        for trip in trips
        if trip.row_key not in names
    ]
    return merge(
        {"I1": lost},
        check_run_or_parked(
            names.values(), settled, [f"{shard}/{added_id}" for shard, added_id in books.parked]
        ),
    )


def _check_group(kind: str, stage: Stage, parked: frozenset[Place]) -> Violations:
    """I14 and I20 from every look at the coordination, and from every call."""
    calls, samples = stage.calls.read(), list(stage.watch.samples)
    lost = stage.watch.lost_their_session()
    # A worker that was started again has its name: all processes of a name count.
    started = {
        pid
        for host in stage.system.hosts
        for name, pid in _started(host.log.read_text())
        if name in lost
    }
    afflicted = set() if kind in _HANDED_OVER else stage.afflicted | started
    overtaken = [
        check_overtaken(calls, pid, since_ns, _absent_until(stage, member, since_ns, back_ns))
        for pid, member, since_ns, back_ns in stage.overtaken
    ]
    return merge(
        check_offsets_behind_work(
            samples, Books.read(stage.system.datastore).places(), calls, parked
        ),
        *(check_offsets_rise(each) for each in _between_resets(samples, stage)),
        check_generations(samples),
        check_run_by_one(calls, afflicted),
        *overtaken,
    )


def _between_resets(samples: list[Sample], stage: Stage) -> list[list[Sample]]:
    """Without the content of a restored coordination until somebody set the offsets: that is a
    reset."""
    found: list[list[Sample]] = []
    since_ns = 0
    for went_back_ns, cured_ns in stage.restored:
        found.append(
            [
                sample
                for sample in samples
                if since_ns <= sample.begun_ns and sample.at_ns < went_back_ns
            ]
        )
        since_ns = cured_ns
    return [*found, [sample for sample in samples if sample.begun_ns >= since_ns]]


def _started(log: str) -> list[tuple[str, int]]:
    """``NAME started (pid N)``, as a run reports its workers."""
    lines = [
        line.partition(" started (pid ") for line in log.splitlines() if " started (pid " in line
    ]
    return [(name, int(rest.rstrip(")"))) for name, _, rest in lines]


def _absent_until(stage: Stage, member: str, since_ns: int, back_ns: int) -> int:
    """When a member was last seen to be none, before it was seen to be back."""
    return max(
        (
            sample.begun_ns
            for sample in stage.watch.samples
            if member not in sample.members and sample.begun_ns <= back_ns
        ),
        default=since_ns,
    )


def _check_charges(system: TriggerSystem, trips: list[Trip]) -> Violations:
    """I16: one charge for each card trip, of its very amount, and one STATUS for each trip."""
    books = Books.read(system.datastore)
    origin = system.datastore.origin_id
    due = {
        f"{GROUP}-{origin}-{cell.row_key}-{cell.column_name}-{cell.ref_key}": trip
        for trip in trips
        if trip.by_card and (cell := books.base.get(trip.row_key)) is not None
    }
    charges = SandboxCardProvider(system.billing / "charges.sqlite3").charges()
    wrong = [
        f"charge {charge.idempotency_key} is of {charge.amount_cents} cents, not"
        f" {due[charge.idempotency_key].cents}"
        for charge in charges
        if charge.idempotency_key in due
        and charge.amount_cents != due[charge.idempotency_key].cents
    ]
    taken, owed = (
        sum(charge.amount_cents for charge in charges),
        sum(trip.cents for trip in trips if trip.by_card),
    )
    if taken != owed:
        wrong.append(f"{taken} cents were charged, {owed} are due")
    return merge(
        check_once_per_cell(due, [charge.idempotency_key for charge in charges], "charge"),
        check_once_per_cell(
            [str(trip.row_key) for trip in trips],
            [str(cell.row_key) for cell in books.statuses],
            "settlement",
        ),
        {"I16": wrong},
    )


def _in_time(done: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + SETTLE_S
    while not done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True
