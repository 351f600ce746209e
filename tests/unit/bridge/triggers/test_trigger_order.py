"""Order by row key: parked cells of a row key keep its later cells back, and are taken off from the
front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.triggers.parked.cell import ParkedCell, due, fronts
from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.retry import ProcessEnded, RetryPolicy
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, passes, set_failpoint
from tests.support.parked import parked_cell
from tests.support.trigger_steps import GROUP, Worker

Ran = list[tuple[str, int]]


class Service:
    """A trigger that fails for some cells, named by row and number, as long as they are ``bad``;
    ``ran`` has its calls in order."""

    def __init__(self, datastore: Datastore, batch: int | None = None, **options: Any) -> None:
        self.datastore = datastore
        self.bad: set[tuple[str, int]] = set()
        self.ran: Ran = []
        options = {
            "group": GROUP,
            "order_by_row_key": True,
            "retry": {ProcessEnded: RetryPolicy(5), Exception: RetryPolicy(1)},
            **options,
        }

        def run(cells: Sequence[Cell]) -> None:
            names = [(str(cell.body["row"]), cell.ref_key) for cell in cells]
            if bad := self.bad.intersection(names):
                raise ValueError(f"bad: {sorted(bad)}")
            self.ran += names

        if batch is not None:
            self.function: Callable[..., Any] = trigger("BASE", batch=batch, **options)(run)
        else:
            self.function = trigger("BASE", **options)(lambda row_key, cell: run([cell]))
        rows = _row_keys_of_one_shard(datastore, "abc")
        self.row_key = rows.__getitem__

    def put(self, *names: tuple[str, int]) -> None:
        self.datastore.put_cells(
            [(self.row_key(row), "BASE", number, {"row": row}) for row, number in names]
        )

    def worker(self, name: str = "a") -> Worker:
        """Under the same name, it is the one before, restarted."""
        return Worker(self.datastore, self.function, name)

    def work(self) -> Worker:
        worker = self.worker()
        worker.work()
        return worker

    def of(self, row: str) -> list[int]:
        return [number for each, number in self.ran if each == row]


def _row_keys_of_one_shard(datastore: Datastore, rows: str) -> dict[str, str]:
    found: dict[str, str] = {}
    number = 0
    while len(found) < len(rows):
        key = f"00000000-0000-0000-0000-{number:012d}"
        if datastore.shard_of(key) == 3:
            found[rows[len(found)]] = key
        number += 1
    return found


def cell_id(worker: Worker, service: Service, row: str, number: int) -> str:
    [found] = [
        cell.cell_id
        for cell in worker.parked.all(GROUP)
        if cell.row_key == service.row_key(row) and cell.ref_key == number
    ]
    return found


@pytest.mark.parametrize("batch", [None, 1, 3, 100])
def test_later_cells_of_a_parked_row_key_wait_and_other_row_keys_continue(
    datastore: Datastore, batch: int | None
) -> None:
    service = Service(datastore, batch)
    service.bad = {("a", 2)}
    service.put(("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2), ("a", 4), ("b", 3))
    worker = service.work()
    assert (service.of("a"), service.of("b")) == ([1], [1, 2, 3])
    assert [(cell.ref_key, cell.is_behind, cell.attempts) for cell in worker.parked.all(GROUP)] == [
        (2, False, 1),
        (3, True, 0),
        (4, True, 0),
    ]
    service.bad = set()
    assert worker.retry() == 3
    service.put(("a", 5))
    worker.work()
    assert service.of("a") == [1, 2, 3, 4, 5]
    assert worker.parked.all(GROUP) == []


def test_cells_of_a_waiting_row_key_wait_too_also_after_a_restart(
    datastore: Datastore,
) -> None:
    service = Service(datastore)
    service.bad = {("a", 1)}
    service.put(("a", 1))
    service.work()
    service.put(("a", 2), ("b", 1))
    service.bad = set()  # its cause is mended, but nobody has tried it again
    restarted = service.work()
    assert service.ran == [("b", 1)]
    assert restarted.retry() == 2
    assert service.ran == [("b", 1), ("a", 1), ("a", 2)]


def test_a_released_cell_that_fails_blocks_the_ones_behind_it(datastore: Datastore) -> None:
    service = Service(datastore)
    service.bad = {("a", 1), ("a", 3)}
    service.put(*(("a", number) for number in range(1, 6)))
    worker = service.work()
    service.bad = {("a", 3)}
    assert worker.retry() == 2
    assert service.of("a") == [1, 2]
    assert [(cell.ref_key, cell.is_behind) for cell in worker.parked.all(GROUP)] == [
        (3, False),
        (4, True),
        (5, True),
    ]
    service.bad = set()
    assert worker.retry() == 3
    assert service.of("a") == [1, 2, 3, 4, 5]


def test_skipping_the_first_by_hand_releases_the_others_in_order(datastore: Datastore) -> None:
    service = Service(datastore)
    service.bad = {("a", 1)}
    service.put(*(("a", number) for number in range(1, 4)))
    worker = service.work()
    worker.parked.skip(GROUP, cell_id(worker, service, "a", 1), "refunded")
    service.put(("a", 4))
    worker.work()  # the log is not ahead of the waiting cells
    assert service.of("a") == []
    assert due(worker.parked.all(GROUP), all_due=False) == {3: False}
    assert worker.retry(only_asked=True) == 3
    assert service.of("a") == [2, 3, 4]
    service.put(("a", 5))
    worker.work()
    assert service.of("a") == [2, 3, 4, 5]


def test_skipping_a_later_cell_leaves_the_others_behind_the_first(
    datastore: Datastore,
) -> None:
    service = Service(datastore)
    service.bad = {("a", 1)}
    service.put(*(("a", number) for number in range(1, 4)))
    worker = service.work()
    worker.parked.skip(GROUP, cell_id(worker, service, "a", 2), "obsolete")
    assert worker.retry(only_asked=True) == 0
    service.bad = set()
    assert worker.retry() == 2
    assert service.of("a") == [1, 3]


def test_retrying_a_later_one_by_hand_is_refused_and_all_of_the_group_run_in_order(
    datastore: Datastore,
) -> None:
    service = Service(datastore)
    service.bad = {("a", 1), ("b", 1)}
    service.put(("a", 1), ("b", 1), ("a", 2), ("b", 2))
    worker = service.work()
    with pytest.raises(InvalidRequest, match="retry or skip that one first"):
        worker.parked.ask_retry(GROUP, cell_id(worker, service, "a", 2))
    assert worker.retry(only_asked=True) == 0
    worker.parked.ask_retry(GROUP, cell_id(worker, service, "b", 1))
    service.bad = {("a", 1)}
    assert worker.retry(only_asked=True) == 2
    assert service.ran == [("b", 1), ("b", 2)]
    assert worker.parked.ask_retry(GROUP) == 2
    service.bad = set()
    assert worker.retry(only_asked=True) == 2
    assert service.of("a") == [1, 2]


def test_asking_for_a_retry_while_it_runs_does_not_make_it_run_once_more(
    datastore: Datastore,
) -> None:
    service = Service(datastore)
    service.bad = {("a", 1)}
    service.put(("a", 1), ("a", 2))
    worker = service.work()
    service.bad = set()
    function = service.function.__cellfeed_trigger__.function  # type: ignore[attr-defined]

    def asked_meanwhile(row_key: object, cell: Cell) -> None:
        if cell.ref_key == 1:
            worker.parked.ask_retry(GROUP)
        function(row_key, cell)

    service.function = trigger("BASE", group=GROUP, order_by_row_key=True, retry=RetryPolicy(1))(
        asked_meanwhile
    )
    assert service.worker().retry() == 2
    assert service.of("a") == [1, 2]
    assert worker.parked.all(GROUP) == []


def test_cells_that_only_wait_do_not_stop_the_trigger(datastore: Datastore) -> None:
    service = Service(datastore, parked_max=2)
    service.bad = {("a", 1)}
    service.put(*(("a", number) for number in range(1, 60)))
    worker = service.work()
    assert worker.parked.count(GROUP) == 59
    assert worker.parked.stopped_because(GROUP) is None
    service.bad = {("b", 1)}
    service.put(("b", 1))
    worker.work()
    assert "2 cells are parked" in str(worker.parked.stopped_because(GROUP))


def test_a_row_key_with_endless_cells_behind_a_parked_one_stops_the_trigger(
    datastore: Datastore,
) -> None:
    service = Service(datastore, parked_max=2)
    service.bad = {("a", 1)}
    service.put(*(("a", number) for number in range(1, 400)))
    worker = service.work()
    assert "the limit is 200" in str(worker.parked.stopped_because(GROUP))


def test_without_order_by_row_key_later_cells_run(datastore: Datastore) -> None:
    service = Service(datastore, order_by_row_key=False)
    service.bad = {("a", 1)}
    service.put(*(("a", number) for number in range(1, 4)))
    worker = service.work()
    assert service.of("a") == [2, 3]
    worker.parked.ask_retry(GROUP)
    service.bad = set()
    assert worker.retry(only_asked=True) == 1


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize(
    "failpoint",
    [
        "trigger.before_run",
        "trigger.after_run",
        "trigger.before_park",
        "trigger.after_park",
        "trigger.before_save",
    ],
)
@pytest.mark.parametrize("at_pass", [1, 2, 4])
def test_the_order_of_a_row_is_kept_when_a_worker_dies_at_any_step(
    datastore: Datastore, batch: int | None, failpoint: str, at_pass: int
) -> None:
    service = Service(datastore, batch)
    service.bad = {("a", 2), ("b", 1)}
    service.put(
        ("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("c", 1), ("b", 3), ("a", 4), ("c", 2)
    )
    first = service.worker()
    set_failpoint(failpoint, "raise", at_pass)
    try:
        first.work()
        service.bad = set()
        first.retry()
    except FailpointReached:
        assert passes(failpoint) >= at_pass
    clear_failpoints()
    service.bad = set()
    heir = service.work()
    heir.retry()
    service.put(("a", 5), ("b", 4))
    heir.work()
    assert heir.parked.all(GROUP) == []
    for row, last in (("a", 5), ("b", 4), ("c", 2)):
        first_runs = list(dict.fromkeys(service.of(row)))
        assert first_runs == list(range(1, last + 1)), f"row {row}: {service.of(row)}"
        _assert_runs_again_only_what_was_last(service.of(row))


def _assert_runs_again_only_what_was_last(numbers: list[int]) -> None:
    """At least once: after a death the last ones may run again, from some place on, in order."""
    for before, after in pairwise(numbers):
        assert after <= before + 1


def parked(
    row: str, added_id: int, *, in_order: bool = True, is_behind: bool = False, asked: bool = False
) -> ParkedCell:
    return parked_cell(
        0,
        added_id,
        group=GROUP,
        row_key=row,
        error="",
        parked_at_us=0,
        last_tried_at_us=0,
        retry_asked=asked,
        in_order=in_order,
        is_behind=is_behind,
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12))
def test_the_fronts_are_the_first_cell_of_each_row_key_and_every_unordered_cell(
    cells: list[tuple[str, bool]],
) -> None:
    queue = [
        parked(row, added_id, in_order=in_order) for added_id, (row, in_order) in enumerate(cells)
    ]
    found = {cell.added_id for cell in fronts(queue)}
    for cell in queue:
        earlier = [
            other
            for other in queue
            if other.row_key == cell.row_key and other.added_id < cell.added_id
        ]
        assert (cell.added_id in found) == (not cell.in_order or not earlier)


def test_a_partition_is_due_for_requested_cells_and_for_cells_behind_no_other() -> None:
    assert due([parked("a", 1)], all_due=False) == {}
    assert due([parked("a", 1)], all_due=True) == {0: True}
    assert due([parked("a", 1, asked=True)], all_due=False) == {0: False}
    assert due([parked("a", 1, is_behind=True)], all_due=False) == {0: False}
    assert due([parked("a", 1), parked("a", 2, is_behind=True)], all_due=False) == {}
