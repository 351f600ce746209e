"""Fault runs of erasures: a program that erases is killed somewhere in between, with a person's
text in each place that the guide lists, beside puts.

A process that begins afresh ends the erasures on record; nobody tells it which row. Then the files
are scrubbed and searched: no place has the text (E20), and every acknowledged cell of another row
is there (I1).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final
from unittest.mock import patch
from uuid import UUID

from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.scrub import scrub_files
from cellfeed.store.indexes import records
from tests.faults.invariants import Violations, merge
from tests.faults.run import FaultRun
from tests.support.personal_data import PLACES, SHARDS, files_with

ERASE_EVERYWHERE: Final = "erase-everywhere"
ERASE_KINDS: Final = (ERASE_EVERYWHERE,)
ROOT = Path(__file__).parents[2]

_TRIM: Final = "notes of a trim that died"

KILLS: Final = (
    "datastore.erase.noted",
    "sqlite.erase.before_commit",
    "sqlite.erase.after_commit",
    "datastore.erase.after_poke",
    "index.erase.retired",
    "index.erase.removed",
    "datastore.erase.taken_out",
    "sqlite.left.between",
    "datastore.erase.before_end",
)
"""Where the program is killed: one place of each step of an erasure."""


def run_erase_faults(kind: str, seed: int, directory: Path) -> FaultRun:
    """One erasure that is killed for each place, in an order and at failpoints that the seed
    draws."""
    chance = random.Random(f"{kind}-{seed}")
    result = FaultRun(kind, seed)
    planted: dict[str, tuple[UUID, str]] = {}
    with patch.object(records, "GRACE_S", 0.0):
        places = chance.sample(sorted(PLACES), len(PLACES))
        with Datastore.open_embedded(directory, shards=SHARDS) as datastore:
            PLACES["retired index versions"](
                datastore, UUID(int=chance.getrandbits(128)), "somebody else"
            )
            # The trim comes first: it takes cells of the rows that are there.
            for number, place in enumerate(sorted(places, key=lambda each: each != _TRIM)):
                planted[place] = (
                    UUID(int=chance.getrandbits(128)),
                    f"Jane Roe {number} {chance.getrandbits(64):016x}",
                )
                PLACES[place](datastore, *planted[place])
        # Planting reads files by hand, which takes SQLite's locks from this process: the store is
        # opened again.
        with Datastore.open_embedded(directory, shards=SHARDS) as datastore:
            puts = _Puts(datastore, chance.getrandbits(32))
            puts.start()
            for place in places:
                before, began_s = puts.stored, time.monotonic()
                result.witnessed.append(_killed(directory, planted[place][0], chance.choice(KILLS)))
                if (ended := _run(directory)).stdout.strip() != "1":
                    result.violations = merge(
                        result.violations,
                        {
                            "E20": [
                                f"{place}: {ended.stdout} erasures were ended:"
                                f" {ended.stderr[-500:]}"
                            ]
                        },
                    )
                result.recovery_s.append(time.monotonic() - began_s)
                result.operations_inside += puts.stored - before
            puts.stop()
            result.violations = merge(result.violations, {"I1": puts.lost()})
        scrub_files(directory / "trips")
    found: Violations = {
        "E20": [
            f"{place}: {files}"
            for place, (_, text) in planted.items()
            if (files := files_with(directory, text))
        ]
    }
    result.violations = merge(result.violations, found)
    return result


def _killed(directory: Path, row: UUID, point: str) -> str:
    ended = _run(directory, str(row), point=f"{point}=kill")
    if ended.returncode != -signal.SIGKILL:
        raise RuntimeError(
            f"the program was not killed at {point}: {ended.returncode} {ended.stderr[-500:]}"
        )
    return f"the erasure of {row} was killed at {point}"


def _run(directory: Path, *row: str, point: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.faults.erase_process", str(directory), *row]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CELLFEED_FAILPOINTS": point},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class _Puts(threading.Thread):
    """Puts cells of other rows, one after the other."""

    def __init__(self, datastore: Datastore, seed: int) -> None:
        super().__init__(daemon=True)
        self._datastore, self._seed = datastore, seed
        self._ended = threading.Event()
        self.stored = 0
        self._failed: list[str] = []

    def run(self) -> None:
        while not self._ended.wait(0.002):
            try:
                self._datastore.put_cell(self._row(self.stored), "BASE", 1, {"n": self.stored})
            except Exception as error:  # told with the run
                self._failed.append(f"{error!r}")
                return
            self.stored += 1

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def lost(self) -> list[str]:
        rows = [self._row(number) for number in range(self.stored)]
        return [
            *self._failed,
            *(
                f"{row} was acknowledged and is not there"
                for row in rows
                if self._datastore.get_cell(row, "BASE", 1) is None
            ),
        ]

    def _row(self, number: int) -> UUID:
        return UUID(int=self._seed << 64 | number)
