"""Triggers that are coroutine functions: order, tries, faults and time-outs as of plain ones."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cellfeed.bridge.triggers.async_store import AsyncStore
from cellfeed.bridge.triggers.coroutines import finished, is_coroutine_function, stack_under_way
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import RetryPolicy, trigger
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.testing import Kit
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
KEYS = [uuid4() for _ in range(24)]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with Kit(tmp_path) as opened:
        yield opened


@trigger(column="BASE", retry=RetryPolicy(attempts=3))
async def answer(row_key: UUID, *, cell: Cell, store: AsyncStore) -> None:
    """Reads and puts a cell for each cell, with another task's turn between them."""
    found = await store.get_cell(row_key, "BASE", cell.ref_key)
    await asyncio.sleep(0)
    assert found is not None
    await store.put_cell(row_key, "ANSWER", cell.ref_key, {"to": found.body["n"]})


def put(kit: Kit, each: int = 2) -> None:
    kit.store.put_cells([(key, "BASE", n, {"n": n}) for n in range(each) for key in KEYS])


def assert_answered(kit: Kit, each: int = 2) -> None:
    for key in KEYS:
        for n in range(each):
            found = kit.store.get_cell(key, "ANSWER", n)
            assert found is not None
            assert found.body == {"to": n}


def test_each_cell_runs_to_its_end_in_the_order_of_its_shard(kit: Kit) -> None:
    put(kit)
    kit.run_until_idle(answer)
    assert_answered(kit)
    assert [kit.runs(key) for key in KEYS] == [2] * len(KEYS)
    for shard in range(kit.store.shards):
        order = [run.cells[0].added_id for run in kit.history() if run.shard == shard]
        assert order == sorted(order)
    assert {run.outcome.name for run in kit.history()} == {"DONE"}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "failpoint", ["trigger.before_run", "sqlite.put.after_commit", "trigger.after_run"]
)
def test_a_worker_that_is_killed_loses_no_cell(kit: Kit, failpoint: str, workers: int) -> None:
    put(kit)
    kit.kill_at(failpoint, at_pass=3)
    kit.run_until_idle(answer, workers=workers)
    assert_answered(kit)
    assert not kit.parked()


class OddError(BaseException):
    """No Exception."""


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), OddError("odd")]
)
def test_any_error_parks_its_cell_and_the_next_ones_run(kit: Kit, error: BaseException) -> None:
    calls: list[UUID] = []

    @trigger(column="BASE", group="odd", retry=RetryPolicy(attempts=2), parked_max=50)
    async def fails_for_one(row_key: UUID) -> None:
        await asyncio.sleep(0)
        calls.append(row_key)
        if row_key == KEYS[0]:
            raise error

    put(kit, each=1)
    kit.run_until_idle(fails_for_one)
    [parked] = kit.parked()
    assert type(error).__name__ in parked.error
    assert "fails_for_one" in parked.error
    assert calls.count(KEYS[0]) == 2
    assert set(calls) == set(KEYS)


def test_a_cancelled_coroutine_has_failed(kit: Kit) -> None:
    @trigger(column="BASE", group="cancelled", retry=RetryPolicy(attempts=1), parked_max=50)
    async def cancels_itself(row_key: UUID) -> None:
        if row_key == KEYS[1]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)

    put(kit, each=1)
    kit.run_until_idle(cancels_itself)
    [parked] = kit.parked()
    assert "CancelledError" in parked.error


def test_a_task_that_would_end_the_loop_ends_only_itself(kit: Kit) -> None:
    async def ends() -> None:
        raise SystemExit(4)

    @trigger(column="BASE", group="tasks")
    async def begins_a_task(row_key: UUID) -> None:
        task = asyncio.get_running_loop().create_task(ends())
        await asyncio.wait([task])
        assert isinstance(task.exception(), SystemExit)

    put(kit, each=1)
    kit.run_until_idle(begins_a_task)
    assert [kit.runs(key) for key in KEYS] == [1] * len(KEYS)
    assert not kit.parked()


def test_a_batch_is_one_coroutine(kit: Kit) -> None:
    seen: list[int] = []

    @trigger(column="BASE", group="batches", batch=10)
    async def takes_batches(cells: list[Cell], *, store: AsyncStore) -> None:
        await store.heads()
        seen.extend(cell.ref_key for cell in cells)

    put(kit)
    kit.run_until_idle(takes_batches)
    assert len(seen) == 2 * len(KEYS)


def test_coroutines_of_several_shards_share_one_loop_and_overlap(kit: Kit) -> None:
    loops: set[int] = set()
    most = [0, 0]
    met: list[asyncio.Event] = []

    @trigger(column="BASE", group="overlap")
    async def meets_another(row_key: UUID) -> None:
        loops.add(id(asyncio.get_running_loop()))
        if not met:
            met.append(asyncio.Event())
        most[0] += 1
        if most[0] == 2:
            met[0].set()
        await asyncio.wait_for(met[0].wait(), 30)
        most[0] -= 1
        most[1] += 1

    put(kit, each=1)
    kit.run_until_idle(meets_another)
    assert len(loops) == 1
    assert most[1] >= len(KEYS)


async def _coroutine(row_key: UUID) -> None:
    del row_key


class _Callable:
    async def __call__(self, row_key: UUID) -> None:
        del row_key


@functools.wraps(_coroutine)
def _wrapped(*arguments: Any) -> Any:
    return _coroutine(*arguments)


@pytest.mark.parametrize(
    "function", [_coroutine, functools.partial(_coroutine), _Callable(), _wrapped]
)
def test_functions_that_give_coroutines_are_known(function: Any) -> None:
    assert is_coroutine_function(function)
    assert finished(function(uuid4())) is None


def test_a_plain_function_is_called_as_before() -> None:
    assert not is_coroutine_function(print)
    assert finished(7) == 7


def test_the_stack_of_a_waiting_coroutine_names_the_place() -> None:
    begun, end = threading.Event(), threading.Event()

    async def inner() -> None:
        begun.set()
        await asyncio.to_thread(end.wait)

    async def outer() -> None:
        await inner()

    thread = threading.Thread(target=lambda: finished(outer()))
    thread.start()
    try:
        assert begun.wait(30)
        assert thread.ident is not None
        stack = stack_under_way(thread.ident)
        while "end.wait" not in stack:
            stack = stack_under_way(thread.ident)
        assert stack.index("outer") < stack.index("inner")
    finally:
        end.set()
        thread.join()
    assert stack_under_way(thread.ident) == ""


HANGS = """
import asyncio

from cellfeed import RetryPolicy, trigger


async def never():
    await asyncio.Event().wait()


@trigger(column="BASE", group="hangs", timeout_s=0.5, retry=RetryPolicy(attempts=1))
async def hangs(row_key, *, cell):
    if cell.ref_key == 1:
        await never()
"""


def test_a_coroutine_that_hangs_ends_its_process_and_is_parked_with_the_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    command = [sys.executable, "-m", "tests.support.trigger_process", str(tmp_path / "store")]
    command += ["worker", "2.0", str(tmp_path / "hangs.py"), "{}"]
    with Datastore.open_embedded(tmp_path / "store", shards=4) as store:
        row = uuid4()
        store.put_cells([(row, "BASE", n, {}) for n in range(4)])
        parked = ParkedCells(store.state)
        exit_codes: list[int] = []
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
            try:

                def look() -> bool:
                    nonlocal process
                    if process.poll() is not None:
                        exit_codes.append(process.returncode)
                        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
                    return bool(parked.all("hangs"))

                wait_until(look, "the cell is parked")
            finally:
                process.kill()
                process.wait(30)
        [cell] = parked.all("hangs")
    assert exit_codes == [75]
    assert "TimedOut" in cell.error
    assert "in never" in cell.error
