"""Tries counted across processes: a worker that dies is one that is left behind here, and another
one takes its shards over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.retry import ProcessEnded, RetryPolicy
from cellfeed.bridge.triggers.shard.run import CHUNK_CELLS
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StaleWriter
from cellfeed.store.failpoints import (
    FailpointReached,
    ProcessEnds,
    clear_failpoints,
    passes,
    set_failpoint,
)
from tests.support.trigger_steps import GROUP, Worker, row


class Died(ProcessEnds):
    """Stands for the end of the process: nothing of the product catches it."""


def on_record(datastore: Datastore) -> list[str]:
    return [entry.key.rpartition("/")[2] for entry in datastore.state.list("tries/")]


def deadly(ran: list[int], kills: Callable[[int], bool], **options: Any) -> Callable[..., Any]:
    @trigger(
        column="BASE",
        group=GROUP,
        **{"retry": {ProcessEnded: RetryPolicy(2), Exception: RetryPolicy(1)}, **options},
    )
    def work(row_key: UUID, *, cell: Cell) -> None:
        ran.append(cell.added_id)
        if kills(cell.added_id):
            raise Died

    return work


def put_in_one_shard(datastore: Datastore, count: int) -> int:
    datastore.put_cells([(row(0), "BASE", ref_key, {}) for ref_key in range(count)])
    return datastore.shard_of(row(0))


def lives(datastore: Datastore, function: Callable[..., Any]) -> int:
    """How many workers it takes until one comes to the end."""
    for life in range(1, 20):
        worker = Worker(datastore, function, f"worker-{life}")
        try:
            worker.work()
        except Died:
            worker.membership.leave()  # its session ends, its claims stay: nothing was given back
        else:
            worker.give_back()
            return life
    raise AssertionError("a crash loop")


def test_no_attempt_is_recorded_for_a_shard_that_was_given_back(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_one_shard(datastore, 10)
    ran: list[int] = []
    Worker(datastore, deadly(ran, lambda _: False)).give_back()
    commits: list[set[str]] = []
    commit = datastore.state.commit

    def noted(write: Any, expect: Any = None) -> Any:
        commits.append(set(write))
        return commit(write, expect)

    monkeypatch.setattr(datastore.state, "commit", noted)
    Worker(datastore, deadly(ran, lambda _: False)).work()
    assert ran == list(range(10))
    assert not any(key.startswith("tries/") for keys in commits for key in keys)


def test_a_cell_that_ends_its_process_is_parked_once_its_tries_are_used_up(
    datastore: Datastore,
) -> None:
    put_in_one_shard(datastore, 60)
    ran: list[int] = []
    # Once without a record, twice on record as the policy says; the fourth worker parks it unrun.
    assert lives(datastore, deadly(ran, lambda added_id: added_id == 40)) == 4
    assert ran.count(40) == 3
    [parked] = Worker(datastore, deadly(ran, lambda _: False)).parked.all(GROUP)
    assert (parked.added_id, parked.attempts, parked.ended) == (40, 2, 2)
    assert "ProcessEnded: the process ended 2 times" in parked.error
    assert set(ran) == set(range(60))
    assert on_record(datastore) == []


def test_a_cell_that_has_ended_a_process_on_record_makes_no_other_cell_run_again(
    datastore: Datastore,
) -> None:
    put_in_one_shard(datastore, 60)
    ran: list[int] = []
    lives(datastore, deadly(ran, lambda added_id: added_id == 40))
    # Before the first death, before the first one that was counted, and once more, where none was
    # saved meanwhile; then the offset is right before it.
    assert all(1 <= ran.count(added_id) <= 3 for added_id in range(40))


def test_two_cells_that_end_their_process_are_both_parked(datastore: Datastore) -> None:
    put_in_one_shard(datastore, 60)
    ran: list[int] = []
    assert lives(datastore, deadly(ran, lambda added_id: added_id in (10, 12))) <= 8
    parked = Worker(datastore, deadly(ran, lambda _: False)).parked.all(GROUP)
    assert [cell.added_id for cell in parked] == [10, 12]


def test_only_cells_that_may_have_been_running_are_counted(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_one_shard(datastore, CHUNK_CELLS + 100)
    ran: list[int] = []
    died = Worker(datastore, deadly(ran, lambda _: False))
    died.membership.leave()
    counted: list[str] = []
    commit = datastore.state.commit

    def counting(write: Any, expect: Any = None) -> int | None:
        counted.extend(
            key for key, value in write.items() if key.startswith("tries/") and value is not None
        )
        return commit(write, expect)

    monkeypatch.setattr(datastore.state, "commit", counting)
    Worker(datastore, deadly(ran, lambda _: False), "heir").work()
    assert len(counted) == CHUNK_CELLS
    put_in_one_shard(datastore, CHUNK_CELLS + 150)  # 50 more
    counted.clear()
    Worker(
        datastore, deadly(ran, lambda _: False), "heir"
    ).work()  # took over from the one before, as its name does
    assert len(counted) == 50
    assert on_record(datastore) == []


def test_batches_are_run_cell_by_cell_where_a_process_died(datastore: Datastore) -> None:
    put_in_one_shard(datastore, 60)
    sizes: list[int] = []

    @trigger(column="BASE", group=GROUP, batch=25, retry={ProcessEnded: RetryPolicy(1)})
    def work(cells: Sequence[Cell]) -> None:
        sizes.append(len(cells))
        if any(cell.added_id == 30 for cell in cells):
            raise Died

    assert lives(datastore, work) == 3
    assert sizes[:2] == [25, 25]
    assert set(sizes[2:]) == {1}
    assert [cell.added_id for cell in Worker(datastore, work).parked.all(GROUP)] == [30]


def test_a_parked_cell_that_ends_the_process_is_retried_only_on_request(
    datastore: Datastore,
) -> None:
    put_in_one_shard(datastore, 20)
    ran: list[int] = []
    lives(datastore, deadly(ran, lambda added_id: added_id == 7))
    before = ran.count(7)
    worker = Worker(datastore, deadly(ran, lambda added_id: added_id == 7))
    assert worker.retry() == 0
    assert ran.count(7) == before
    worker.parked.ask_retry(GROUP)
    with pytest.raises(Died):
        worker.retry(only_asked=True)
    heir = Worker(datastore, deadly(ran, lambda added_id: added_id == 7))
    heir.work()
    [parked] = heir.parked.all(GROUP)
    assert (parked.attempts, parked.ended, parked.retry_asked) == (3, 3, False)
    assert heir.retry(only_asked=True) == 0
    assert ran.count(7) == before + 1
    heir.parked.ask_retry(GROUP)
    assert Worker(datastore, deadly(ran, lambda _: False)).retry(only_asked=True) == 1
    assert heir.parked.all(GROUP) == []
    assert on_record(datastore) == []


@pytest.mark.parametrize(
    "failpoint",
    [
        "tries.before_counted",
        "tries.after_counted",
        "tries.before_struck_off",
        "tries.after_struck_off",
    ],
)
def test_a_death_while_tries_are_counted_leaves_no_cell_out_and_no_count_behind(
    datastore: Datastore, failpoint: str
) -> None:
    put_in_one_shard(datastore, 30)
    ran: list[int] = []
    function = deadly(ran, lambda _: False)
    Worker(datastore, function, "died").membership.leave()
    set_failpoint(failpoint, "raise")
    second = Worker(datastore, function, "second")
    with pytest.raises(FailpointReached):
        second.work()
    assert passes(failpoint)
    clear_failpoints()
    second.membership.leave()
    heir = Worker(datastore, function, "heir")
    heir.work()
    assert set(ran) == set(range(30))
    assert heir.parked.all(GROUP) == []
    assert on_record(datastore) == []


def test_a_worker_that_was_overtaken_changes_no_count(datastore: Datastore) -> None:
    shard = put_in_one_shard(datastore, 30)
    ran: list[int] = []
    function = deadly(ran, lambda added_id: added_id == 5)
    Worker(datastore, function, "died").membership.leave()
    zombie = Worker(datastore, function, "zombie")
    zombie.membership.leave()
    heir = Worker(datastore, function, "heir")
    with pytest.raises(Died):
        heir.work()
    with pytest.raises(StaleWriter):
        zombie.runs[shard]._recorded.begin(5)
    assert on_record(datastore) == [f"{5:020d}"]
