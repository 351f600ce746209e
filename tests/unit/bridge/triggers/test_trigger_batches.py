"""Triggers that take batches: their size and order, waiting for more, and finding the cells that
make a batch fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.retry import RetryPolicy
from cellfeed.bridge.triggers.shard import batches
from cellfeed.bridge.triggers.shard.batches import BACKLOG_CELLS, CHUNK_CELLS, Batches
from cellfeed.store.cells.cell import Cell, StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.limits import SCAN_BYTES_MAX, SCAN_DECODED_BYTES_MAX
from tests.support.trigger_steps import GROUP, Worker, row

pytestmark = pytest.mark.usefixtures("quick_looks")


def batches_of(
    size: int, seen: list[list[int]], poison: Collection[int] = (), **options: Any
) -> Callable[..., Any]:
    @trigger(column="BASE", group=GROUP, batch=size, **{"retry": RetryPolicy(2, 0, 0), **options})
    def work(cells: Sequence[Cell]) -> None:
        seen.append([cell.added_id for cell in cells])
        assert all(cell.body == {"n": cell.ref_key} for cell in cells)
        if bad := [cell.added_id for cell in cells if cell.added_id in poison]:
            raise ValueError(f"cells {bad}")

    return work


def put(datastore: Datastore, numbers: range, column: str = "BASE") -> None:
    datastore.put_cells([(row(0), column, number, {"n": number}) for number in numbers])


def test_batches_are_full_and_in_log_order_and_the_rest_comes_at_the_end(
    datastore: Datastore,
) -> None:
    seen: list[list[int]] = []
    put(datastore, range(250))
    worker = Worker(datastore, batches_of(100, seen))
    worker.work()
    assert [len(batch) for batch in seen] == [100, 100, 50]
    assert [added_id for batch in seen for added_id in batch] == list(range(250))
    assert worker.offsets()[datastore.shard_of(row(0))] == 250


def test_cells_of_other_columns_are_passed_over(datastore: Datastore) -> None:
    seen: list[list[int]] = []
    for number in range(0, 900, 3):
        datastore.put_cells(
            [
                (row(0), column, number + place, {"n": number + place})
                for place, column in enumerate(["NOTES", "BASE", "NOTES"])
            ]
        )
    worker = Worker(datastore, batches_of(40, seen))
    worker.work()
    assert [added_id for batch in seen for added_id in batch] == list(range(1, 900, 3))
    assert [len(batch) for batch in seen] == [40] * 7 + [20]
    assert worker.offsets()[datastore.shard_of(row(0))] == 900


def test_shards_that_are_behind_run_one_at_a_time_and_the_others_wait_for_none(
    datastore: Datastore,
) -> None:
    held, turns = threading.Lock(), list[tuple[bool, int]]()

    @trigger(column="BASE", group=GROUP, batch=1_000)
    def work(cells: Sequence[Cell]) -> None:
        turns.append((held.locked(), len(cells)))

    marked = cast("Any", work)
    marked.__cellfeed_trigger__ = replace(marked.__cellfeed_trigger__, backlog_turn=held)
    worker = Worker(datastore, work)
    shard = datastore.shard_of(row(0))
    run = worker.runs[shard]

    def bring_on() -> None:
        assert run.has_work(datastore.heads()[shard].watermark)
        run.run_chunk()

    put(datastore, range(BACKLOG_CELLS))
    bring_on()
    put(datastore, range(BACKLOG_CELLS, 2 * BACKLOG_CELLS - 1))
    bring_on()
    put(datastore, range(2 * BACKLOG_CELLS - 1, 2 * BACKLOG_CELLS))
    with held:
        bring_on()
    assert turns == [(True, BACKLOG_CELLS), (False, BACKLOG_CELLS - 1), (True, 1)]
    assert not held.locked()


def test_every_batch_may_take_the_store(datastore: Datastore) -> None:
    stores: list[object] = []

    @trigger(column="BASE", group=GROUP, batch=3)
    def work(cells: Sequence[Cell], store: object) -> None:
        stores.append(store)

    put(datastore, range(3))
    Worker(datastore, work).work()
    assert stores == [datastore]


@pytest.mark.parametrize("poison", [{0}, {63}, {17, 18}, {5, 30, 31, 60}, set(range(64))])
def test_the_cells_that_make_a_batch_fail_are_found_and_parked_and_the_others_run(
    datastore: Datastore, poison: set[int]
) -> None:
    seen: list[list[int]] = []
    put(datastore, range(64))
    worker = Worker(datastore, batches_of(64, seen, poison, parked_max=1000))
    worker.work()
    assert {cell.added_id for cell in worker.parked.all(GROUP)} == poison
    assert all(
        cell.attempts == 2 and f"cells [{cell.added_id}]" in cell.error
        for cell in worker.parked.all(GROUP)
    )
    done = [added_id for batch in seen if not poison.intersection(batch) for added_id in batch]
    assert done == sorted(set(range(64)) - poison)  # each once, in order
    assert seen[0] == seen[1] == list(range(64))  # the whole batch has all its tries


def test_a_batch_that_fails_for_a_while_is_not_taken_apart(datastore: Datastore) -> None:
    sizes: list[int] = []

    @trigger(column="BASE", group=GROUP, batch=10, retry=RetryPolicy(3, 0, 0))
    def work(cells: Sequence[Cell]) -> None:
        sizes.append(len(cells))
        if len(sizes) < 3:
            raise ValueError("not yet")

    put(datastore, range(10))
    Worker(datastore, work).work()
    assert sizes == [10, 10, 10]


def test_a_store_that_is_away_takes_no_try_of_a_batch(datastore: Datastore) -> None:
    sizes: list[int] = []

    @trigger(column="BASE", group=GROUP, batch=10, retry=RetryPolicy(1, 0, 0))
    def work(cells: Sequence[Cell]) -> None:
        sizes.append(len(cells))
        if len(sizes) < 5:
            raise StorageUnavailable("away")

    put(datastore, range(10))
    worker = Worker(datastore, work)
    worker.work()
    assert sizes == [10] * 5
    assert worker.parked.all() == []


def test_a_batch_stopped_between_its_halves_saves_the_first_half(datastore: Datastore) -> None:
    seen: list[list[int]] = []
    put(datastore, range(8))
    shard = datastore.shard_of(row(0))
    workers: list[Worker] = []

    @trigger(column="BASE", group=GROUP, batch=8, retry=RetryPolicy(1, 0, 0))
    def work(cells: Sequence[Cell]) -> None:
        seen.append([cell.added_id for cell in cells])
        if len(cells) == 8:
            raise ValueError("too many")
        workers[0].runs[shard].stop.set()

    workers.append(Worker(datastore, work))
    workers[0].runs[shard].run_chunk()
    assert seen == [list(range(8)), [0, 1, 2, 3]]
    assert workers[0].offsets()[shard] == 4
    workers[0].give_back()
    Worker(datastore, work).work()
    assert seen[2:] == [[4, 5, 6, 7]]


def test_a_parked_cell_of_a_batch_is_retried_as_a_batch_of_one(datastore: Datastore) -> None:
    seen: list[list[int]] = []
    poison = {3}
    put(datastore, range(8))
    worker = Worker(datastore, batches_of(8, seen, poison))
    worker.work()
    poison.clear()
    seen.clear()
    assert worker.retry() == 1
    assert seen == [[3]]


# --- waiting --------------------------------------------------------------------------------------


class Log:
    """A shard's log in memory, cells of 1 KiB."""

    def __init__(self, cells: int = 0, body_bytes: int = 1024) -> None:
        self.cells = [
            StoredCell(added_id, row(0).bytes, "BASE", added_id, 0, b"b" * body_bytes)
            for added_id in range(cells)
        ]

    def more(self, count: int, column: str = "BASE") -> None:
        end = len(self.cells)
        self.cells += [
            StoredCell(added_id, row(0).bytes, column, added_id, 0, b"b")
            for added_id in range(end, end + count)
        ]

    def scan(self, location: int, limit: int) -> list[StoredCell]:
        return self.cells[location : location + limit]


def parts_of(log: Log, size: int, wait_s: float = 0.0, alone: Collection[int] = ()) -> Batches:
    @trigger(column="BASE", group=GROUP, batch=size, batch_wait_s=wait_s)
    def work(cells: Sequence[Cell]) -> None:
        del cells

    return Batches(work.__cellfeed_trigger__, log.scan, lambda added_id: added_id in alone)  # type: ignore[attr-defined]


def chunk(parts: Batches, location: int) -> tuple[list[int], int]:
    """The sizes of a chunk's batches and the location behind them. Each batch lies between the
    locations before and behind it: later cells are not passed with it."""
    sizes = []
    for cells, behind in parts.next_chunk(location):
        assert all(location <= cell.added_id < behind for cell in cells)
        assert behind >= location
        location = behind
        sizes += [len(cells)] if cells else []
    return sizes, location


def test_a_batch_that_is_not_full_waits_for_more_and_goes_when_it_is_full() -> None:
    log = Log(30)
    parts = parts_of(log, 50, wait_s=3600)
    assert chunk(parts, 0) == ([], 0)
    assert not parts.may_have(30)
    assert not parts.may_have(49)
    log.more(10, "NOTES")
    log.more(20)
    assert parts.may_have(60)
    assert chunk(parts, 0) == ([50], 60)
    assert parts.may_have(60)


def test_a_batch_that_waits_keeps_its_time_when_more_cells_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("cellfeed.bridge.triggers.shard.batches.time.monotonic", lambda: now_s[0])
    log = Log()
    log.more(5, "NOTES")
    log.more(3)
    parts = parts_of(log, 50, wait_s=2.0)
    assert chunk(parts, 0) == ([], 5)  # past cells that are not for it
    now_s[0] = 101.0
    log.more(4)
    assert not parts.may_have(12)
    assert chunk(parts, 5) == ([], 5)
    now_s[0] = 102.0
    assert parts.may_have(12)
    assert chunk(parts, 5) == ([7], 12)


def test_cells_that_run_alone_end_the_batch_before_them() -> None:
    parts = parts_of(Log(20), 50, alone={4, 5})
    assert chunk(parts, 0) == ([4, 1, 1, 14], 20)


def test_a_batch_ends_where_its_bodies_reach_the_bytes_of_a_scan() -> None:
    big = SCAN_BYTES_MAX // 3
    assert chunk(parts_of(Log(7, big), 50), 0) == ([3, 3, 1], 7)


def test_a_batch_ends_where_its_bodies_reach_the_decoded_bytes_of_a_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bodies that compress well."""
    monkeypatch.setattr(batches, "decoded_bytes_bound", lambda _: SCAN_DECODED_BYTES_MAX // 2)
    assert chunk(parts_of(Log(5), 50), 0) == ([2, 2, 1], 5)


def test_cells_of_other_columns_are_passed_one_by_one() -> None:
    """By a trigger without batches."""

    @trigger(column="BASE", group=GROUP)
    def work(row_key: UUID) -> None:
        del row_key

    log = Log()
    log.more(3, "NOTES")
    log.more(1)
    parts = Batches(work.__cellfeed_trigger__, log.scan, lambda _: False)  # type: ignore[attr-defined]
    assert [(len(cells), behind) for cells, behind in parts.next_chunk(0)] == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 4),
    ]


def test_a_chunk_ends_after_some_cells_so_that_the_shard_is_looked_at() -> None:
    sizes, location = chunk(parts_of(Log(1000), 150), 0)
    assert sizes == [150, 150]
    assert location == 300
    sizes, location = chunk(parts_of(Log(1000), 10), 0)
    assert CHUNK_CELLS <= location <= 2 * CHUNK_CELLS
    assert set(sizes) == {10}


def test_a_log_without_the_triggers_column_is_passed_without_a_batch() -> None:
    log = Log()
    log.more(700, "NOTES")
    assert chunk(parts_of(log, 10, wait_s=5), 0) == ([], 700)
