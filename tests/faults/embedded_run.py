"""Fault runs on the files of an embedded store: a worker process takes puts while it may not open
further files, its disk is full, or its files are replaced.

Each cell is put once. Afterwards the worker is killed, and a process that begins afresh reads the
log: nothing acknowledged is lost (I1), nothing stands twice or elsewhere (I2, I4, I5, I7), and
nothing that certainly failed is there (E6). While a worker's files are others, it acknowledges
nothing and is not ready.
"""

from __future__ import annotations

import random
import resource
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from tests.faults.embedded_system import Callers, Worker
from tests.faults.invariants import (
    Seen,
    Violations,
    check_definite,
    check_gapless,
    check_log,
    merge,
)
from tests.faults.ledger import Ledger
from tests.faults.run import FaultRun
from tests.support.small_disk import fill, make_room, small_disk
from tests.support.waiting import wait_until

DESCRIPTOR_LIMIT, FILES_REPLACED, STORE_DISK_FULL = EMBEDDED_KINDS = (
    "descriptor-limit",
    "files-replaced",
    "store-disk-full",
)

FAULTS_IN_A_RUN = 4
SMALL_DISK_BYTES = 64 << 20
RECOVERY_MAX_S = 10.0
CALL_MAX_S = 15.0
"""I21. A put's own time-out, and the slack of a busy machine."""

READY_MAX_S = 3.0
"""A worker whose files are others says so until then: it looks 20 times a second."""

LIMIT_S = 10.0
"""How long a worker may open nothing at most: far longer than the cells of a checkpoint take."""

_TEXT_BYTES = {DESCRIPTOR_LIMIT: 20_000, FILES_REPLACED: 100, STORE_DISK_FULL: 2_000}
"""Of a body. At the descriptor limit a few hundred cells have to make a checkpoint, which opens
files."""

Heal = Callable[[], object]


def run_embedded_faults(kind: str, seed: int, directory: Path) -> FaultRun:
    """Runs and checks. Raises NoSmallDisk where a full disk cannot be had."""
    chance = random.Random(f"{kind}-{seed}")
    result, ledger = FaultRun(kind, seed), Ledger()
    with ExitStack() as stack:
        store = (
            stack.enter_context(small_disk(SMALL_DISK_BYTES))
            if kind == STORE_DISK_FULL
            else directory / "store"
        )
        for variant in chance.choices(sorted(REPLACEMENTS), k=FAULTS_IN_A_RUN):
            worker = Worker(store, directory / "worker.log")
            try:
                with Callers(worker, ledger, chance, _TEXT_BYTES[kind]) as callers:
                    _until_acknowledged(ledger, time.monotonic(), 20)
                    began_s = time.monotonic()
                    if kind == DESCRIPTOR_LIMIT:
                        result.witnessed.append(_at_the_limit(worker, ledger))
                    elif kind == STORE_DISK_FULL:
                        result.witnessed.append(_disk_full(worker, store, ledger))
                    else:
                        wrong = _files_replaced(worker, store / "trips", variant, ledger, chance)
                        result.witnessed.append(f"{worker}: {variant}")
                        result.violations = merge(result.violations, wrong)
                    healed_s = time.monotonic()
                    result.operations_inside += sum(
                        put.begun_s >= began_s and put.outcome is not None
                        for put in list(ledger.puts)
                    )
                    _until_acknowledged(ledger, healed_s, 1)
                    result.recovery_s.append(time.monotonic() - healed_s)
                    time.sleep(chance.uniform(0, 0.2))
                    worker.kill()
                slow = (
                    [f"a call took {callers.longest_call_s:.1f} s"]
                    if callers.longest_call_s > CALL_MAX_S
                    else []
                )
                result.violations = merge(result.violations, {"I21": slow})
            finally:
                worker.kill()
        result.violations = merge(result.violations, _checked(store, ledger))
    slow = [f"recovery took {each:.1f} s" for each in result.recovery_s if each > RECOVERY_MAX_S]
    result.violations = merge(result.violations, {"I21": slow})
    return result


# --- faults ---------------------------------------------------------------------------------------


def _at_the_limit(worker: Worker, ledger: Ledger) -> str:
    """The worker may open nothing until it has tried checkpoints, which need to."""
    began_s = time.monotonic()
    before, tried = (
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE),
        worker.warnings("no checkpoint just now"),
    )
    used = {int(each.name) for each in Path(f"/proc/{worker.pid}/fd").iterdir()}
    free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (free, before[1]))
    while (
        worker.warnings("no checkpoint just now") < tried + 3
        and time.monotonic() < began_s + LIMIT_S
    ):
        time.sleep(0.02)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)
    missed, refused = (
        worker.warnings("no checkpoint just now") - tried,
        len(_refused(ledger, began_s)),
    )
    if not missed and not refused:
        raise RuntimeError(
            f"{worker} wanted no descriptor in {LIMIT_S} s: the fault did not happen"
        )
    return (
        f"{worker}: no checkpoint {missed} times and {refused} puts refused at {free} descriptors"
    )


def _disk_full(worker: Worker, disk: Path, ledger: Ledger) -> str:
    began_s = time.monotonic()
    fill(disk)
    filled_s = time.monotonic()
    wait_until(
        lambda: (
            sum(put.begun_s > filled_s and put.outcome is not None for put in list(ledger.puts))
            > 50
        ),
        "puts are answered on the full disk",
    )
    make_room(disk)
    refused = _refused(ledger, began_s)
    return (
        f"{worker}: {refused.count('failed')} puts failed and {refused.count('unknown')} are"
        " unknown on a full disk"
    )


def _refused(ledger: Ledger, since_s: float) -> list[str]:
    return [
        put.outcome
        for put in list(ledger.puts)
        if put.begun_s > since_s and put.outcome in ("failed", "unknown")
    ]


def _files_replaced(
    worker: Worker, place: Path, variant: str, ledger: Ledger, chance: random.Random
) -> Violations:
    heal = REPLACEMENTS[variant](place)
    replaced_s = time.monotonic()
    while worker.ready() and time.monotonic() < replaced_s + 2 * READY_MAX_S:
        time.sleep(0.02)
    unready_s = time.monotonic() - replaced_s
    time.sleep(chance.uniform(0.1, 0.5))
    healing_s = time.monotonic()
    heal()
    taken = [
        put
        for put in list(ledger.puts)
        if put.acknowledged and put.begun_s > replaced_s and (put.answered_s or 0) < healing_s
    ]
    return {
        "I1": [
            f"{variant}: {put.triple} was acknowledged to files that nobody will open"
            for put in taken
        ],
        "I21": (
            [f"{variant}: the worker was ready for {unready_s:.1f} s with files that are others"]
            if unready_s > READY_MAX_S
            else []
        ),
    }


def _moved_away(place: Path) -> Heal:
    place.rename(place.with_name("away"))
    return lambda: place.with_name("away").rename(place)


def _deleted(*suffixes: str) -> Callable[[Path], Heal]:
    """Takes the names away; the heal gives the same files their names back."""

    def delete(place: Path) -> Heal:
        moved = {
            place / f"{CELLS_FILE}{suffix}": place.with_name(f"kept{suffix}") for suffix in suffixes
        }
        for part, kept in moved.items():
            part.rename(kept)
        return lambda: [kept.replace(part) for part, kept in moved.items()]

    return delete


def _copied(*suffixes: str) -> Callable[[Path], Heal]:
    """Puts copies in their places, as a restore by hand would."""

    def copy(place: Path) -> Heal:
        heal = _deleted(*suffixes)(place)
        for suffix in suffixes:
            shutil.copy(place.with_name(f"kept{suffix}"), place / f"{CELLS_FILE}{suffix}")
        return heal

    return copy


_ALL = ("", "-wal", "-shm")
REPLACEMENTS: dict[str, Callable[[Path], Heal]] = {
    "the folder was moved away": _moved_away,
    "the files were deleted": _deleted(*_ALL),
    "the files were replaced by copies": _copied(*_ALL),
    "the write-ahead log was deleted": _deleted("-wal"),
    "the write-ahead log was replaced by a copy": _copied("-wal"),
}


# --- checks ---------------------------------------------------------------------------------------


def _until_acknowledged(ledger: Ledger, since_s: float, count: int) -> None:
    wait_until(
        lambda: (
            sum(put.begun_s >= since_s and put.acknowledged for put in list(ledger.puts)) >= count
        ),
        "puts are acknowledged",
        30,
    )


def _checked(store: Path, ledger: Ledger) -> Violations:
    log = {}
    with Datastore.open_embedded(store) as datastore:
        for shard in range(datastore.shards):
            log[shard], location = list[Seen](), 0
            while cells := datastore.get_cells_for_shard(shard, location, 5000).cells:
                log[shard] += [
                    Seen(
                        cell.added_id,
                        UUID(str(cell.row_key)),
                        cell.column_name,
                        cell.ref_key,
                        cell.body_json,
                    )
                    for cell in cells
                ]
                location = cells[-1].added_id + 1
    return merge(check_log(ledger, log), check_gapless(log), check_definite(ledger, log))
