"""Single puts of one client that are made at the same time: which share a request, and that each
has its own outcome with any fate of the request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store import forks
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.errors import (
    CellConflict,
    InvalidRequest,
    OutcomeUnknown,
    Overloaded,
    StorageUnavailable,
)
from cellfeed.store.http.calls import asynchronous_puts, blocking_puts, shared_puts
from cellfeed.store.http.calls.blocking import Blocking
from cellfeed.store.http.calls.shared_puts import Queue, Together
from cellfeed.store.http.client import Client
from cellfeed.store.limits import BATCH_BYTES_MAX, BATCH_CELLS_MAX
from tests.support.client_in_loop import ClientInLoop
from tests.support.scripted_worker import Cells, Results, scripted_worker, stored
from tests.support.waiting import wait_until

ROW = UUID(int=7)


@pytest.fixture(params=[Client, ClientInLoop], ids=["threads", "tasks"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


class Held:
    """A worker whose first request is answered when the test says so."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.released = threading.Event()
        self.later: Any = stored

    def __call__(self, cells: Cells) -> Results:
        if not self.first.is_set():
            self.first.set()
            self.released.wait(40)
            return stored(cells)
        answered: Results = self.later(cells)
        return answered


def put_behind_the_first(
    client: Any, callers: ThreadPoolExecutor, held: Held, count: int
) -> list[Future[PutResult]]:
    """Puts one cell, and ``count`` more while its request is under way; those wait."""
    puts = [callers.submit(client.put_cell, ROW, "BASE", 0, {})]
    assert held.first.wait(10)
    puts += [callers.submit(client.put_cell, ROW, "BASE", n + 1, {}) for n in range(count)]
    wait_until(lambda: waiting(client) == count, "the others wait for the first")
    return puts


def waiting(client: Any) -> int:
    """How many puts of a client wait for a request."""
    if isinstance(client, Client):
        assert client._puts is not None
        return len(client._puts._own.queue._waiting)

    async def count() -> int:
        return len(client._client._puts._shared().queue._waiting)

    counted: int = client._await(count())
    return counted


def test_puts_share_the_next_request_and_each_has_its_own_outcome(
    kind: Any, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_puts, "PATIENCE_S", 30.0)
    monkeypatch.setattr(blocking_puts, "PATIENCE_S", 30.0)
    monkeypatch.setattr(asynchronous_puts, "PATIENCE_S", 30.0)
    held = Held()

    def later(cells: Cells) -> Results:
        status, results = stored(cells)
        assert isinstance(results, list)
        for cell, result in zip(cells, results, strict=True):
            if cell["ref_key"] == 9:
                error = CellConflict("another body").as_json()
                result.update(outcome="conflict", added_id=None, error=error)
            if cell["ref_key"] == 10:
                result["outcome"] = "exists"
        return status, results

    held.later = later
    with scripted_worker(held) as (url, worker), kind(url, "trips", timeout_s=30) as client:
        puts = put_behind_the_first(client, callers, held, 20)
        held.released.set()
        with pytest.raises(CellConflict):
            puts[9].result(15)
        outcomes = [put.result(15) for n, put in enumerate(puts) if n != 9]
    assert [result.added_id for result in outcomes] == [n for n in range(21) if n != 9]
    assert {result.outcome for result in outcomes} == {Outcome.STORED, Outcome.EXISTS}
    assert outcomes[9].outcome is Outcome.EXISTS
    assert [len(cells) for cells in worker.puts] == [1, 20]


def test_a_put_alone_is_sent_at_once_as_one_cell(kind: Any) -> None:
    with scripted_worker() as (url, worker), kind(url, "trips") as client:
        for n in range(5):
            assert client.put_cell(ROW, "BASE", n, {}).added_id == n
    assert [len(cells) for cells in worker.puts] == [1] * 5


def test_sharing_can_be_switched_off(kind: Any, callers: ThreadPoolExecutor) -> None:
    both = threading.Barrier(2, timeout=10)

    def at_once(cells: Cells) -> Results:
        both.wait()
        return stored(cells)

    with (
        scripted_worker(at_once) as (url, worker),
        kind(url, "trips", share_requests=False) as client,
    ):
        puts = [callers.submit(client.put_cell, ROW, "BASE", n, {}) for n in range(2)]
        assert [put.result().added_id for put in puts] == [0, 1]
    assert [len(cells) for cells in worker.puts] == [1, 1]


@pytest.mark.parametrize(
    "refused", [InvalidRequest("too much for this worker"), StorageUnavailable("away")]
)
def test_a_refused_shared_request_is_repeated_cell_by_cell(
    kind: Any,
    callers: ThreadPoolExecutor,
    refused: InvalidRequest | StorageUnavailable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An answer that comes later, on a busy machine, would leave the bad cell's outcome open.
    monkeypatch.setattr(shared_puts, "SHARED_S", 1.5)
    held = Held()

    def later(cells: Cells) -> Results:
        if len(cells) > 1:
            return refused.http_status, refused.as_json()
        if cells[0]["ref_key"] == 3:
            error = InvalidRequest("a bad cell")
            return error.http_status, error.as_json()
        return stored(cells)

    held.later = later
    with scripted_worker(held) as (url, _), kind(url, "trips", timeout_s=30) as client:
        puts = put_behind_the_first(client, callers, held, 6)
        held.released.set()
        with pytest.raises(InvalidRequest, match="a bad cell"):
            puts[3].result()
        assert [put.result().added_id for n, put in enumerate(puts) if n != 3] == [0, 1, 2, 4, 5, 6]


def test_a_retriable_refusal_of_one_cell_is_repeated_for_that_cell(
    kind: Any, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its own deadline, which is later than that of the shared request."""
    monkeypatch.setattr(shared_puts, "SHARED_S", 0.2)
    held, ended = Held(), threading.Event()

    def later(cells: Cells) -> Results:
        status, results = stored(cells)
        assert isinstance(results, list)
        for cell, result in zip(cells, results, strict=True):
            if cell["ref_key"] == 2 and not ended.is_set():
                error = Overloaded("its cluster is busy").as_json()
                result.update(outcome="failed", added_id=None, error=error)
        return status, results

    held.later = later
    with scripted_worker(held) as (url, _), kind(url, "trips", timeout_s=30) as client:
        puts = put_behind_the_first(client, callers, held, 4)
        held.released.set()
        assert [put.result(15).added_id for n, put in enumerate(puts) if n != 2] == [0, 1, 3, 4]
        ended.set()
        assert puts[2].result(15).added_id == 2


def test_a_cell_that_a_shared_request_may_have_stored_has_not_failed(
    kind: Any, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_puts, "SHARED_S", 0.1)
    held = Held()

    def later(cells: Cells) -> Results:
        kind = OutcomeUnknown if len(cells) > 1 else InvalidRequest
        return kind.http_status, kind("said so").as_json()

    held.later = later
    with scripted_worker(held) as (url, _), kind(url, "trips", timeout_s=2) as client:
        puts = put_behind_the_first(client, callers, held, 2)
        held.released.set()
        for put in puts[1:]:
            with pytest.raises(OutcomeUnknown):
                put.result()


def test_no_caller_waits_for_a_request_that_hangs(
    kind: Any, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    with scripted_worker(held) as (url, worker), kind(url, "trips", timeout_s=30) as client:
        puts = put_behind_the_first(client, callers, held, 5)
        assert sorted(put.result(10).added_id or 0 for put in puts[1:]) == [1, 2, 3, 4, 5]
        assert not puts[0].done()
        for module in (blocking_puts, asynchronous_puts):
            monkeypatch.setattr(module, "PATIENCE_S", 30.0)  # later cells are sent at once
        late = callers.submit(client.put_cell, ROW, "BASE", 9, {})
        assert late.result(10).added_id == 9
        assert [len(cells) for cells in worker.puts][-1] == 1
        held.released.set()
        assert puts[0].result(10).added_id == 0


def test_a_shared_request_that_hangs_is_ended_and_its_cells_are_sent_one_by_one(
    kind: Any, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_puts, "SHARED_S", 0.2)
    held, hung = Held(), threading.Event()

    def later(cells: Cells) -> Results:
        if len(cells) > 1:  # one of them is for a cluster that is away
            hung.wait(20)
        return stored(cells)

    held.later = later
    with scripted_worker(held) as (url, worker), kind(url, "trips", timeout_s=30) as client:
        puts = put_behind_the_first(client, callers, held, 5)
        held.released.set()
        assert [put.result(15).added_id for put in puts] == list(range(6))
        hung.set()
    assert {len(cells) for cells in worker.puts} == {1, 5}


def test_the_other_calls_go_one_by_one_when_the_sender_is_interrupted(
    callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, run = Held(), Blocking.run
    interrupted: list[int] = []

    def interrupts_the_sender(self: Blocking, steps: Any) -> Any:
        if steps.__name__ == "send_together":
            interrupted.append(1)
            raise KeyboardInterrupt
        return run(self, steps)

    monkeypatch.setattr(Blocking, "run", interrupts_the_sender)
    with scripted_worker(held) as (url, _), Client(url, "trips", timeout_s=30) as client:
        puts = put_behind_the_first(client, callers, held, 5)
        held.released.set()
        ended = [put.exception(15) for put in puts]
    assert sum(isinstance(error, KeyboardInterrupt) for error in ended) == len(interrupted) == 1
    assert sum(error is None for error in ended) == 5


@pytest.mark.parametrize("is_appointed", [False, True])
def test_a_caller_that_is_interrupted_while_it_waits_leaves_the_others_a_sender(
    callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, is_appointed: bool
) -> None:
    """Before it is woken to send, and after."""
    held, wait = Held(), blocking_puts._Put.wait
    target: list[Any] = []
    chosen, withdrawn = threading.Event(), threading.Event()

    def interrupted(put: Any, _timeout_s: float) -> bool:
        assert chosen.wait(20)
        if not is_appointed and put not in target:
            # Its own time runs out first: another one that overtook it would send its put.
            assert withdrawn.wait(20)
        woken = wait(put, 10.0 if is_appointed else 0.2)
        if put in target and woken is is_appointed:
            raise KeyboardInterrupt
        return woken

    monkeypatch.setattr(blocking_puts._Put, "wait", interrupted)
    with scripted_worker(held) as (url, _), Client(url, "trips", timeout_s=30) as client:
        puts = put_behind_the_first(client, callers, held, 4)
        assert client._puts is not None
        target.append(client._puts._own.queue._waiting[0])
        chosen.set()
        if is_appointed:
            held.released.set()
        else:
            wait_until(lambda: waiting(client) == 3, "the interrupted caller has withdrawn its put")
            withdrawn.set()
        ended = [put.exception(15) for put in puts[1:]]
        held.released.set()
        assert puts[0].result(15).added_id == 0
        assert [type(error) for error in ended if error] == [KeyboardInterrupt]
        assert client.put_cell(ROW, "BASE", 99, {}).added_id == 99


def test_a_child_of_a_fork_has_a_queue_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_worker() as (url, _), Client(url, "trips") as client:
        client.put_cell(ROW, "BASE", 1, {})
        puts = client._puts
        assert puts is not None
        parents = puts._own
        parents.lock.acquire()  # by a thread that the child does not have
        monkeypatch.setattr(forks, "generation", forks.generation + 1)
        child = threading.Thread(target=client.put_cell, args=(ROW, "BASE", 2, {}), daemon=True)
        child.start()
        child.join(10)
        assert not child.is_alive()
        assert puts._own is not parents


def test_a_cancelled_caller_cancels_no_other(
    callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asynchronous_puts, "PATIENCE_S", 30.0)

    held = Held()
    with scripted_worker(held) as (url, worker), ClientInLoop(url, "trips") as client:
        puts = put_behind_the_first(client, callers, held, 3)
        cancelled = asyncio.run_coroutine_threadsafe(
            client._client.put_cell(ROW, "BASE", 50, {}), client._loop
        )
        wait_until(lambda: waiting(client) == 4, "it waits as well")
        cancelled.cancel()
        wait_until(lambda: waiting(client) == 3, "its cell is taken back")
        held.released.set()
        assert [put.result(10).added_id for put in puts] == [0, 1, 2, 3]
        assert 50 not in [cell["ref_key"] for cells in worker.puts for cell in cells]
        # The one whose request is under way: the request goes to its end, and the next is sent.
        held.first.clear()
        held.released.clear()
        first = asyncio.run_coroutine_threadsafe(
            client._client.put_cell(ROW, "BASE", 60, {}), client._loop
        )
        assert held.first.wait(10)
        behind = asyncio.run_coroutine_threadsafe(
            client._client.put_cell(ROW, "BASE", 61, {}), client._loop
        )
        wait_until(lambda: waiting(client) == 1, "one waits behind it")
        first.cancel()
        try:
            assert behind.result(10).added_id == 61
        finally:
            held.released.set()


# --- the queue by itself --------------------------------------------------------------------------


class _Put:
    def __init__(self, cell: NewCell) -> None:
        self.cell = cell
        self.deadline = time.monotonic() + 10


@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["enter", "leave", "abandon", "overtake", "withdraw"]),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_every_put_is_in_one_request_or_waits_while_one_is_under_way(
    actions: list[tuple[str, int]],
) -> None:
    queue: Queue[_Put] = Queue()
    cell = new_cell(ROW, "BASE", 1, {})
    sent: list[_Put] = []
    entered: list[_Put] = []
    withdrawn: list[_Put] = []
    under_way: list[Together[_Put]] = []
    for action, number in actions:
        request = None
        if action == "enter":
            entered.append(_Put(cell))
            request = queue.enter(entered[-1])
            assert (request is None) == bool(under_way), "it waits only for one under way"
        elif action in ("leave", "abandon") and under_way:
            ended = under_way.pop(number % len(under_way))
            if action == "leave":
                request = queue.leave(ended)
            else:
                queue.abandon(ended)
        elif action == "overtake" and entered:
            put = entered[number % len(entered)]
            was_waiting = put in queue._waiting
            request = queue.overtake(put)
            assert was_waiting == (request is not None)
            assert request is None or request.puts[0] is put
        elif action == "withdraw" and entered:
            put = entered[number % len(entered)]
            withdrawn += [put] if put in queue._waiting else []
            queue.withdraw(put)
        if request is not None:
            sent += request.puts
            under_way.append(request)
        assert sorted(map(id, [*sent, *withdrawn, *queue._waiting])) == sorted(map(id, entered))


@pytest.mark.parametrize(
    ("body", "fits"),
    [({}, BATCH_CELLS_MAX), ({"text": "x" * 900_000}, BATCH_BYTES_MAX // 900_011)],
)
def test_a_shared_request_has_at_most_the_cells_and_bytes_of_one(
    body: dict[str, Any], fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_puts, "PATIENCE_S", 600)  # to enter thousands of puts takes a while
    queue: Queue[_Put] = Queue()
    cell = new_cell(uuid4(), "BASE", 1, body)
    first = queue.enter(_Put(cell))
    assert first is not None
    for _ in range(fits + 2):
        assert queue.enter(_Put(cell)) is None
    second = queue.leave(first)
    assert second is not None
    assert len(second.puts) == fits
    third = queue.leave(second)
    assert third is not None
    assert len(third.puts) == 2
    assert queue.leave(third) is None
