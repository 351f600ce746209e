"""Several processes write to the same files while others read the logs; some are killed. Nothing is
late, skipped, lost or doubled (I1–I8)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from tests.support.writer_process import acknowledgements, body_of, row_of

ROOT = Path(__file__).parents[3]
SHARDS = 4


def start_writer(
    directory: Path, writer: int, cells: int, threads: int, failpoints: str = ""
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.writer_process",
            str(directory),
            str(writer),
            str(cells),
            str(threads),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
    )


class Tailer(threading.Thread):
    """Follows every shard from 0, as a consumer does: remembers only its location. Checks order as
    it goes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._store = Datastore.open_embedded(directory, shards=SHARDS)
        self.seen: dict[int, list[Cell]] = {shard: [] for shard in range(SHARDS)}
        self.stop_when_idle = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            locations = dict.fromkeys(range(SHARDS), 0)
            while True:
                stopping = self.stop_when_idle.is_set()
                pieces = self._store.get_cells_for_shards(locations, limit=7)
                for shard, piece in pieces.items():
                    assert [cell.added_id for cell in piece.cells] == list(
                        range(locations[shard], piece.next_location)
                    )
                    assert piece.head.watermark >= piece.next_location
                    self.seen[shard] += piece.cells
                    locations[shard] = piece.next_location
                if stopping and not any(piece.cells for piece in pieces.values()):
                    return
        except BaseException as error:
            self.error = error
        finally:
            self._store.close()


@pytest.fixture
def tailer(tmp_path: Path) -> Iterator[Tailer]:
    follower = Tailer(tmp_path)
    follower.start()
    yield follower
    follower.stop_when_idle.set()
    follower.join(30)


def finish(tailer: Tailer) -> dict[int, list[Cell]]:
    tailer.stop_when_idle.set()
    tailer.join(60)
    assert not tailer.is_alive()
    if tailer.error:
        raise tailer.error
    return tailer.seen


def check(seen: dict[int, list[Cell]], directory: Path, outputs: dict[int, str]) -> int:
    """I1–I8 from outside, given the output of every writer. Returns how many cells were
    acknowledged."""
    places = {
        (cell.row_key, cell.column_name, cell.ref_key): (shard, cell.added_id)
        for shard, cells in seen.items()
        for cell in cells
    }
    assert len(places) == sum(map(len, seen.values())), "a triple is in the log twice (I5)"
    bodies = {cell.row_key: cell.body for cells in seen.values() for cell in cells}
    begun_rows = set()
    count = 0
    for writer, output in outputs.items():
        begun, acknowledged = acknowledgements(output)
        begun_rows |= {row_of(writer, number) for number in begun}
        for number, place in acknowledged.items():
            assert places[(row_of(writer, number), "BASE", 1)] == place, (
                "an acknowledged cell is not where it was said to be (I1, I4)"
            )
            assert bodies[row_of(writer, number)] == body_of(writer, number)
            count += 1
    assert set(bodies) <= begun_rows, "a cell that nobody put (I2)"
    with Datastore.open_embedded(directory, shards=SHARDS) as store:
        for shard, cells in seen.items():
            assert store.get_cells_for_shard(shard, 0, 10_000).cells == cells, (
                "a late reader sees another log (I3, I6, I8)"
            )
            assert sorted(cell.created_at for cell in cells) == [cell.created_at for cell in cells]
    return count


@pytest.mark.integration
def test_writers_in_several_processes_and_a_tailer_that_misses_nothing(
    tmp_path: Path, tailer: Tailer
) -> None:
    writers = {number: start_writer(tmp_path, number, 400, 8) for number in range(3)}
    outputs = {number: process.communicate(timeout=90)[0] for number, process in writers.items()}
    assert all(process.returncode == 0 for process in writers.values())
    assert check(finish(tailer), tmp_path, outputs) == 1200


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(3))
def test_kill_9_of_writers_loses_and_doubles_nothing(
    tmp_path: Path, tailer: Tailer, seed: int
) -> None:
    chance = random.Random(seed)
    outputs: dict[int, str] = {}
    killed = 0
    for number in range(4):
        process = start_writer(tmp_path, number, 100_000, 8)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chance.uniform(0.05, 0.4))
        process.send_signal(signal.SIGKILL)
        # Not communicate(): it reads the pipe itself, past the buffer of readline().
        outputs[number] = first + process.stdout.read()
        process.wait(30)
        process.stdout.close()
        killed += process.returncode == -signal.SIGKILL
    assert killed == 4, "the fault did not happen"
    acknowledged = check(finish(tailer), tmp_path, outputs)
    assert acknowledged > 20, "nothing ran meanwhile"


@pytest.mark.faults
@pytest.mark.parametrize(
    "failpoint", ["before_insert", "before_counter", "before_commit", "after_commit"]
)
def test_kill_9_inside_a_put_loses_and_doubles_no_cell_and_a_retry_settles_it(
    tmp_path: Path, tailer: Tailer, failpoint: str
) -> None:
    process = start_writer(tmp_path, 1, 1000, 1, f"sqlite.put.{failpoint}=kill@20")
    output = process.communicate(timeout=60)[0]
    assert process.returncode == -signal.SIGKILL, "the fault did not happen"
    begun, acknowledged = acknowledgements(output)
    [in_doubt] = begun - set(acknowledged)
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as store:
        outcome = store.put_cell(row_of(1, in_doubt), "BASE", 1, body_of(1, in_doubt)).outcome
    # A put that died before its commit left nothing; one that died after it left its cell.
    assert outcome.value == ("exists" if failpoint == "after_commit" else "stored")
    assert check(finish(tailer), tmp_path, {1: output}) == len(acknowledged)
