"""Cells that end their process, or hang: no crash loop, nothing left out, the cell parked with its
failure; with real processes that really end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.process_death.deadlines import EXIT_TIMED_OUT
from cellfeed.store.datastore import Datastore
from tests.faults.invariants import check_run_or_parked
from tests.support.deadly_programs import ENDED_TRIES, TIMED_OUT_TRIES
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
GROUP = "deadly"
RAISED = {
    "interrupt": "KeyboardInterrupt",
    "cancel": "CancelledError",
    "close": "GeneratorExit",
    "leave": "SystemExit",
}
SHARDS = 4
pytestmark = [pytest.mark.integration, pytest.mark.faults]


class Call(NamedTuple):
    what: str
    shard: int
    added_id: int
    pid: int


class Supervised:
    """One worker, started again under its name whenever it ends, as a supervisor does."""

    def __init__(self, tmp_path: Path, store: Datastore, coordination: str) -> None:
        self.tmp_path, self.store, self.coordination = tmp_path, store, coordination
        self.process: subprocess.Popen[bytes] | None = None
        self.exit_codes: list[int] = []

    def start(self, *, failpoints: str = "", **settings: object) -> None:
        settings = {
            "path": str(self.tmp_path / "calls"),
            "coordination": self.coordination,
            **settings,
        }
        arguments = [
            str(self.tmp_path / "store"),
            "w",
            "2.0",
            "tests.support.deadly_programs:deadly",
            json.dumps(settings),
        ]
        with (self.tmp_path / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-X",
                    "faulthandler",
                    "-m",
                    "tests.support.trigger_process",
                    *arguments,
                ],
                cwd=ROOT,
                env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def run_until(self, done: Callable[[], bool], what: str, **settings: Any) -> None:
        """Starts it, again and again as it ends."""

        def look() -> bool:
            if self.process is None:
                self.start(**settings)
            elif self.process.poll() is not None:
                self.exit_codes.append(self.process.returncode)
                self.process = None
                assert len(self.exit_codes) < 15, f"a crash loop: {self.exit_codes}"
                return False
            return done()

        wait_until(look, what, timeout_s=90)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def calls(self, what: str = "begun") -> list[Call]:
        path = self.tmp_path / "calls"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Call(word, *map(int, rest)) for word, *rest in lines if word == what]

    def times(self, what: str = "begun") -> Counter[tuple[int, int]]:
        return Counter((call.shard, call.added_id) for call in self.calls(what))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as opened:
        yield opened


@pytest.fixture
def worker(tmp_path: Path, store: Datastore, coordination: str) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path, store, coordination)
    yield supervised
    supervised.end()


@pytest.fixture
def store_worker(tmp_path: Path, store: Datastore) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path, store, "store")
    yield supervised
    supervised.end()


def row_in(store: Datastore, shard: int) -> str:
    return next(
        key
        for n in range(1000)
        if store.shard_of(key := f"00000000-0000-0000-0000-{n:012d}") == shard
    )


def put(store: Datastore, shard: int, ref_keys: range, **body: object) -> list[tuple[int, int]]:
    """Cells in one shard; where they are."""
    key = row_in(store, shard)
    return [
        (shard, result.added_id or 0)
        for result in store.put_cells([(key, "BASE", ref_key, body) for ref_key in ref_keys])
    ]


def caught_up(store: Datastore, coordinator: Coordinator) -> bool:
    offsets = coordinator.fetch_offsets(GROUP)
    return all(
        head.watermark == (offsets["trips", shard].offset if ("trips", shard) in offsets else None)
        for shard, head in store.heads().items()
    )


def assert_run_or_parked(store: Datastore, worker: Supervised) -> None:
    cells = [
        f"{cell.shard}/{cell.added_id}"
        for shard in range(SHARDS)
        for cell in store.get_cells_for_shard(shard, 0, 10_000).cells
    ]
    done = [f"{shard}/{added_id}" for shard, added_id in worker.times("ended")]
    assert check_run_or_parked(
        cells, done, [cell.cell_id for cell in ParkedCells(store.state).all()]
    ) == {"I14": []}


def test_an_exception_in_a_function_ends_no_process_and_is_logged_and_a_signal_still_ends_it(
    store: Datastore, store_worker: Supervised
) -> None:
    coordinator = StoreCoordinator(store.state)
    put(store, 0, range(30))
    bad = {deed: put(store, 1, range(n, n + 1), do=deed)[0] for n, deed in enumerate(RAISED)}
    put(store, 1, range(100, 130))
    store_worker.run_until(lambda: caught_up(store, coordinator), "everything is run or parked")
    assert store_worker.exit_codes == []
    errors = {
        (cell.partition, cell.added_id): cell.error for cell in ParkedCells(store.state).all()
    }
    assert set(errors) == set(bad.values())
    log = (store_worker.tmp_path / "log").read_text()
    for deed, error in RAISED.items():
        assert error in errors[bad[deed]]
        assert re.search(rf"trigger deadly: cell \d+ of shard 1 failed(.|\n)+{error}", log)
    assert_run_or_parked(store, store_worker)
    assert store_worker.process is not None
    store_worker.process.terminate()
    assert store_worker.process.wait(30) == 0


@pytest.mark.parametrize("deed", ["exit", "crash", "kill"])
def test_a_cell_that_ends_its_process_is_parked_and_the_loop_ends(
    store: Datastore, coordinator: Coordinator, worker: Supervised, deed: str
) -> None:
    put(store, 0, range(30))
    put(store, 1, range(30))
    [deadly] = put(store, 1, range(30, 31), do=deed)
    put(store, 1, range(31, 60))
    worker.run_until(lambda: caught_up(store, coordinator), "all cells run or parked")
    # Once unseen, then as often as the policy says.
    assert worker.exit_codes == [
        {"exit": 9, "crash": -signal.SIGSEGV, "kill": -signal.SIGKILL}[deed]
    ] * (ENDED_TRIES + 1)
    assert worker.times()[deadly] == ENDED_TRIES + 1
    [parked] = ParkedCells(store.state).all()
    assert (parked.partition, parked.added_id, parked.attempts, parked.ended) == (
        *deadly,
        ENDED_TRIES,
        ENDED_TRIES,
    )
    assert "ProcessEnded: the process ended 2 times while this cell was being run" in parked.error
    assert_run_or_parked(store, worker)
    assert store.state.list("tries/") == []
    # By hand, once the cause is mended.
    (worker.tmp_path / "harmless").touch()
    ParkedCells(store.state).ask_retry(GROUP)
    worker.run_until(lambda: ParkedCells(store.state).count(GROUP) == 0, "it runs when asked for")


def test_a_call_that_hangs_ends_its_process_and_its_cell_is_parked_with_the_place_where_it_hung(
    store: Datastore, coordinator: Coordinator, worker: Supervised
) -> None:
    put(store, 0, range(10))
    [hangs] = put(store, 1, range(1), do="hang")
    put(store, 1, range(1, 20))
    worker.run_until(
        lambda: caught_up(store, coordinator), "all cells run or parked", timeout_s=1.0
    )
    assert worker.exit_codes == [EXIT_TIMED_OUT] * TIMED_OUT_TRIES
    [parked] = ParkedCells(store.state).all()
    assert (parked.partition, parked.added_id, parked.attempts) == (*hangs, TIMED_OUT_TRIES)
    assert "TimedOut: deadly: cell 0 of shard 1 ran longer than 1 s" in parked.error
    assert "in hang_around" in parked.error
    assert worker.times()[hangs] == TIMED_OUT_TRIES
    assert_run_or_parked(store, worker)
    assert store.state.list("tries/") == []


def test_cells_of_other_shards_are_completed_and_saved_before_the_process_ends(
    store: Datastore, store_worker: Supervised
) -> None:
    put(store, 1, range(1), do="hang")
    slow = put(store, 2, range(6), do="slow")  # a second each, in time
    coordinator = StoreCoordinator(store.state)
    store_worker.run_until(
        lambda: caught_up(store, coordinator), "all cells run or parked", timeout_s=3.0
    )
    assert EXIT_TIMED_OUT in store_worker.exit_codes
    assert {store_worker.times()[cell] for cell in slow} == {1}


def test_a_call_that_returns_late_counts_as_timed_out(
    store: Datastore, store_worker: Supervised
) -> None:
    [late] = put(store, 1, range(1), do="slow")
    coordinator = StoreCoordinator(store.state)
    store_worker.run_until(lambda: caught_up(store, coordinator), "parked", timeout_s=0.3)
    assert store_worker.exit_codes == [EXIT_TIMED_OUT] * TIMED_OUT_TRIES
    assert [parked.cell_id for parked in ParkedCells(store.state).all()] == [f"{late[0]}/{late[1]}"]


def test_cells_that_run_beside_one_that_kills_the_process_are_not_parked(
    store: Datastore, store_worker: Supervised
) -> None:
    [deadly] = put(store, 1, range(1), do="exit soon")
    beside = [place for shard in (0, 2, 3) for place in put(store, shard, range(3), do="nap")]
    coordinator = StoreCoordinator(store.state)
    store_worker.run_until(lambda: caught_up(store, coordinator), "all cells run or parked")
    assert store_worker.exit_codes == [9] * (ENDED_TRIES + 1)
    begun, ended = store_worker.times("begun"), store_worker.times("ended")
    assert sum(begun[place] > ended[place] for place in beside) >= 2, (
        "none was under way when the process ended"
    )
    assert [(cell.partition, cell.added_id) for cell in ParkedCells(store.state).all()] == [deadly]


@pytest.mark.parametrize("deed", ["exit", "hang"])
def test_a_deadly_cell_is_found_in_a_batch(
    store: Datastore, store_worker: Supervised, deed: str
) -> None:
    put(store, 1, range(40))
    [deadly] = put(store, 1, range(40, 41), do=deed)
    put(store, 1, range(41, 80))
    coordinator = StoreCoordinator(store.state)
    store_worker.run_until(
        lambda: caught_up(store, coordinator), "all cells run or parked", batch=50, timeout_s=2.0
    )
    assert [(cell.partition, cell.added_id) for cell in ParkedCells(store.state).all()] == [deadly]
    assert (
        len(store_worker.exit_codes) == 1 + 2
    )  # the batch, then the cell by itself as often as its policy says
    assert_run_or_parked(store, store_worker)


@pytest.mark.parametrize("failpoint", ["time_out.before_noted", "time_out.after_noted"])
def test_a_process_killed_while_it_notes_a_time_out_leaves_no_loop_and_nothing_out(
    store: Datastore, store_worker: Supervised, failpoint: str
) -> None:
    put(store, 1, range(10))
    [hangs] = put(store, 1, range(10, 11), do="hang")
    put(store, 1, range(11, 20))
    store_worker.start(failpoints=f"{failpoint}=kill", timeout_s=1.0)
    coordinator = StoreCoordinator(store.state)
    store_worker.run_until(
        lambda: caught_up(store, coordinator), "all cells run or parked", timeout_s=1.0
    )
    assert store_worker.exit_codes[0] == -signal.SIGKILL, "the fault did not happen"
    assert [(cell.partition, cell.added_id) for cell in ParkedCells(store.state).all()] == [hangs]
    assert_run_or_parked(store, store_worker)


def test_a_parked_cell_that_would_hang_again_is_left_to_people(
    store: Datastore, store_worker: Supervised
) -> None:
    put(store, 1, range(1), do="exit")
    coordinator = StoreCoordinator(store.state)
    store_worker.run_until(lambda: caught_up(store, coordinator), "parked")
    ended = len(store_worker.exit_codes)
    assert store_worker.process is not None
    store_worker.process.terminate()
    store_worker.process.wait(30)
    store_worker.process = None
    more = iter(range(1, 1000))

    def goes_on() -> bool:
        number = next(more)
        put(store, 1, range(number, number + 1))
        return number > 100

    store_worker.run_until(
        goes_on, "parked cells were due many times meanwhile", parked_retry_s=0.05
    )
    assert len(store_worker.exit_codes) == ended
    assert ParkedCells(store.state).count(GROUP) == 1
