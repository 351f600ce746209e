"""``forked-client``: a process forks while it puts and reads by key, and both sides continue with
the same client. Every answer is compared with its question."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client
from tests.faults.forked_client_process import Answered, GetAnswered, PutAnswered
from tests.faults.invariants import Violations, check_gapless, check_log, merge
from tests.faults.ledger import Ledger, Put
from tests.faults.run import FaultRun
from tests.faults.workload import read_log
from tests.support.worker_thread import worker_thread

FORK_KINDS: Final = ("forked-client",)

FORKS_BRIEF: Final = 4
FORKS: Final = 20
SHARDS: Final = 16
PROCESS_TIMEOUT_S: Final = 180.0


def run_fork_faults(
    kind: str, seed: int, directory: Path, forks: int = FORKS, *, without: Sequence[str] = ()
) -> FaultRun:
    """Runs and checks. When the process forks follows from the seed. ``without``: mends that are
    undone (:mod:`tests.faults.forked_client_process`)."""
    result = FaultRun(kind, seed)
    directory.mkdir(parents=True, exist_ok=True)
    with (
        Datastore.open_embedded(directory / "store", "trips", SHARDS) as datastore,
        worker_thread(datastore) as url,
    ):
        arguments = [url, str(directory), str(seed), str(forks), *without]
        subprocess.run(
            [sys.executable, "-m", "tests.faults.forked_client_process", *arguments],
            check=True,
            timeout=PROCESS_TIMEOUT_S,
        )
        sides = {int(path.stem): _read(path) for path in directory.glob("*.ndjson")}
        with Client(url, "trips") as client:
            log = read_log(client)
    result.witnessed, result.operations_inside = _witnessed(sides, forks)
    ledger = Ledger(
        [
            _put(each)
            for answers in sides.values()
            for each in answers
            if isinstance(each, PutAnswered)
        ]
    )
    result.violations = merge(
        check_log(ledger, log),
        check_gapless(log),
        *(check_answers(ledger, pid, answers) for pid, answers in sides.items()),
    )
    return result


def check_answers(ledger: Ledger, pid: int, answers: Iterable[Answered]) -> Violations:
    """I1 to I4 of the answers to one process, and I21: with a worker that nothing happens to, every
    call has its answer."""
    puts: Mapping[UUID, Put] = {put.row_key: put for put in ledger.puts}
    violations: Violations = {"I1": [], "I2": [], "I3": [], "I4": [], "I21": []}
    for each in answers:
        if each.error is not None:
            violations["I21"].append(f"process {pid}: row {each.row_key}: {each.error}")
        if not isinstance(each, GetAnswered) or each.error is not None:
            continue
        put, got = puts[each.row_key], each.got
        if got is None:
            violations["I1"].append(
                f"process {pid} was answered that row {each.row_key} is not there, which it had put"
            )
        elif (got.row_key, got.column_name, got.ref_key) != put.triple:
            violations["I3"].append(
                f"process {pid} asked for row {each.row_key} and was shown row {got.row_key}"
            )
        elif got.body_json.encode() != put.body_json:
            violations["I2"].append(
                f"process {pid} was shown another body of row {each.row_key} than was put"
            )
        elif (got.shard, got.added_id) != (put.shard, put.added_id):
            violations["I4"].append(
                f"row {each.row_key} was acknowledged at {put.shard}/{put.added_id} and shown at"
                f" {got.shard}/{got.added_id}"
            )
    return violations


def _witnessed(sides: Mapping[int, Sequence[Answered]], forks: int) -> tuple[list[str], int]:
    """The proof that the process forked under load: puts of the parent lie before and after the
    first one of each child. And how many were acknowledged by children, or beside them."""
    parent = max(sides, key=lambda pid: len(sides[pid]), default=0)
    moments = {
        pid: [
            (each.begun_s, each.answered_s)
            for each in answers
            if isinstance(each, PutAnswered) and each.outcome
        ]
        for pid, answers in sides.items()
    }
    children = [pid for pid in sides if pid != parent and moments[pid] and moments[parent]]
    beside = [
        pid
        for pid in children
        if min(moments[parent])[0] < min(moments[pid])[0] < max(moments[parent])[0]
    ]
    if len(beside) < forks:
        return [], 0
    begun_s = min(min(moments[pid])[0] for pid in beside)
    inside = sum(answered_s >= begun_s for each in moments.values() for _, answered_s in each)
    return [
        f"process {parent} forked {pid}, which was answered {len(sides[pid])} times"
        for pid in beside
    ], inside


def _put(answered: PutAnswered) -> Put:
    return Put(
        answered.row_key,
        "BASE",
        1,
        answered.body_json.encode(),
        answered.begun_s,
        answered.outcome,
        answered.shard,
        answered.added_id,
        answered.answered_s if answered.outcome else None,
    )


def _read(path: Path) -> list[Answered]:
    return msgspec.json.Decoder(Answered).decode_lines(path.read_bytes())
