"""Which tries a cell has: one of a batch that fails, one held behind another, one that failed
before, and one whose store is away."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from cellfeed.bridge.triggers.process_death.recorded_attempts import GroupAttempts
from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.retry import ProcessEnded, RetryPolicy
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import ProcessEnds
from tests.support.trigger_steps import GROUP, Worker, row


class Died(ProcessEnds):
    """Stands for the end of the process."""


def on_record(datastore: Datastore) -> list[int]:
    return [int(entry.key.rpartition("/")[2]) for entry in datastore.state.list("tries/")]


def put(datastore: Datastore, count: int) -> int:
    """So many cells of one row; their shard."""
    datastore.put_cells([(row(0), "BASE", ref_key, {}) for ref_key in range(count)])
    return datastore.shard_of(row(0))


def test_the_halves_of_a_batch_have_one_try_and_its_single_cells_all_of_theirs(
    datastore: Datastore,
) -> None:
    calls: list[list[int]] = []

    @trigger(column="BASE", group=GROUP, batch=4, retry=RetryPolicy(3, 0, 0))
    def work(cells: Sequence[Cell]) -> None:
        calls.append([cell.added_id for cell in cells])
        if cells[0].added_id == 0:
            raise ValueError("poison")

    put(datastore, 4)
    worker = Worker(datastore, work)
    worker.work()
    whole, half = [0, 1, 2, 3], [0, 1]
    assert calls == [whole, whole, whole, half, [0], [0], [0], [1], [2, 3]]
    [parked] = worker.parked.all(GROUP)
    assert (parked.added_id, parked.attempts) == (0, 3)


def test_a_cell_behind_a_parked_one_has_all_its_tries(datastore: Datastore) -> None:
    failures = {0: 1, 1: 1}

    @trigger(
        column="BASE",
        group=GROUP,
        order_by_row_key=True,
        retry={ProcessEnded: RetryPolicy(5), Exception: RetryPolicy(2, 0, 0)},
    )
    def work(row_key: UUID, *, cell: Cell) -> None:
        if failures.get(cell.added_id, 0):
            failures[cell.added_id] -= 1
            raise ValueError("not yet")

    put(datastore, 2)
    failures[0] = 2
    worker = Worker(datastore, work)
    worker.work()
    assert [cell.is_behind for cell in worker.parked.all(GROUP)] == [False, True]
    assert worker.retry() == 2
    assert failures == {0: 0, 1: 0}
    assert worker.parked.all(GROUP) == []


def test_a_store_that_is_away_takes_no_try_of_a_cell(datastore: Datastore) -> None:
    outcomes = [StorageUnavailable("away"), StorageUnavailable("away"), ValueError("once"), None]

    @trigger(column="BASE", group=GROUP, retry=RetryPolicy(2, 0, 0))
    def work(row_key: UUID) -> None:
        if error := outcomes.pop(0):
            raise error

    put(datastore, 1)
    worker = Worker(datastore, work)
    worker.work()
    assert outcomes == []
    assert worker.parked.all(GROUP) == []


def test_a_parked_cell_whose_id_is_another_cell_now_is_not_run(datastore: Datastore) -> None:
    """As after a restore that gave the id out again: the parked one is not there any more."""
    ran: list[UUID] = []

    @trigger(column="BASE", group=GROUP, retry=RetryPolicy(1))
    def work(row_key: UUID) -> None:
        ran.append(row_key)
        raise ValueError("not this one")

    put(datastore, 1)
    worker = Worker(datastore, work)
    worker.work()
    [entry] = datastore.state.list("parked/")
    parked = msgspec.json.decode(entry.value)
    datastore.state.commit(
        {entry.key: msgspec.json.encode({**parked, "row_key": str(row(1))})},
        expect={entry.key: entry.version},
    )
    assert worker.retry() == 0
    assert ran == [row(0)]
    [still] = worker.parked.all(GROUP)
    assert "is not in the log any more" in still.error


def test_tries_on_record_of_the_last_cell_before_the_offset_are_struck_off(
    datastore: Datastore,
) -> None:
    """Its owner died between the save and the end of the record."""

    @trigger(column="BASE", group=GROUP)
    def work(row_key: UUID) -> None:
        pass

    shard = put(datastore, 5)
    first = Worker(datastore, work, "first")
    first.work()
    assert first.offsets()[shard] == 5
    GroupAttempts(datastore.state, GROUP, datastore.name).of_shards([shard])[shard].begin(4)
    assert on_record(datastore) == [4]
    first.membership.leave()
    Worker(datastore, work, "second").work()
    assert on_record(datastore) == []


def test_a_suspect_that_ran_well_is_off_the_record_before_the_next_cell(
    datastore: Datastore,
) -> None:
    """The next cell ends the process: that must not count for this one."""
    lives, seen = [0], list[list[int]]()

    @trigger(column="BASE", group=GROUP, retry={ProcessEnded: RetryPolicy(5)})
    def work(row_key: UUID, *, cell: Cell) -> None:
        if cell.added_id == 1 and lives[0] < 2:
            raise Died
        if cell.added_id == 2 and lives[0] == 2:
            seen.append(on_record(datastore))

    # More cells behind it than are run with their tries on record.
    shard = put(datastore, 3)
    for lives[0] in range(2):
        worker = Worker(datastore, work, f"worker-{lives[0]}")
        try:
            worker.work()
        except Died:
            worker.membership.leave()
    assert on_record(datastore) == [1]
    lives[0] = 2
    # Taken over from an owner that had given the shard back: only the suspect is on record.
    worker.coordinator.release([worker.runs[shard].claim])
    Worker(datastore, work, "worker-2").work()
    assert seen == [[]]
    assert on_record(datastore) == []
