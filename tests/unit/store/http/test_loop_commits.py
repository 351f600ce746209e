"""Puts of an event loop: woken together, in time or told why not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.commit.put_answers import PutAnswer, Then, answer_all
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import OutcomeUnknown, Overloaded, StorageUnavailable
from cellfeed.store.http.server import commits
from cellfeed.store.http.server.commits import LoopCommits

CELL = new_cell(UUID(int=1), "BASE", 1, {})
STORED = PutResult(Outcome.STORED, 0, 7)


class HeldDatastore:
    """Keeps the submitted cells, to be answered by the test."""

    def __init__(self, *, taken_back: bool = False) -> None:
        self.taken_back = taken_back
        self.answers: list[PutAnswer] = []
        self.refuse: Exception | None = None

    def put_soon(self, cells: Sequence[NewCell], then: Then | None = None) -> PutAnswer:
        if self.refuse is not None:
            raise self.refuse
        self.answers.append(PutAnswer(cells, lambda _: self.taken_back, then))
        return self.answers[-1]


def commits_over(datastore: HeldDatastore) -> LoopCommits:
    return LoopCommits(cast("Datastore", datastore))


def test_all_puts_of_a_commit_are_answered_with_one_wake_up_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datastore, wake_ups = HeldDatastore(), list[int]()

    async def put_all() -> list[list[PutResult]]:
        loop, held = asyncio.get_running_loop(), commits_over(datastore)
        wake = loop.call_soon_threadsafe

        def counted(*args: Any, **how: Any) -> Any:
            wake_ups.append(1)
            return wake(*args, **how)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        tasks = [asyncio.ensure_future(held.put([CELL])) for _ in range(100)]
        await asyncio.sleep(0)  # each has begun to wait
        thread = threading.Thread(target=answer_all, args=(datastore.answers, [STORED] * 100))
        thread.start()
        thread.join()  # the loop stands meanwhile, so it empties its box once
        return await asyncio.gather(*tasks)

    assert asyncio.run(put_all()) == [[STORED]] * 100
    assert len(wake_ups) == 1


def test_puts_answered_while_the_loop_runs_are_all_resolved() -> None:
    datastore = HeldDatastore()

    def answer_one_by_one() -> None:
        for answer in list(datastore.answers):
            answer_all([answer], [STORED])

    async def put_all() -> list[list[PutResult]]:
        held = commits_over(datastore)
        found: list[list[PutResult]] = []
        for _ in range(20):
            tasks = [asyncio.ensure_future(held.put([CELL])) for _ in range(50)]
            thread = threading.Thread(target=answer_one_by_one)
            thread.start()
            found += await asyncio.gather(*tasks)
            thread.join()
            datastore.answers.clear()
        return found

    assert asyncio.run(put_all()) == [[STORED]] * 1000


def test_an_answer_that_precedes_its_waiter_is_delivered() -> None:
    datastore = HeldDatastore()

    async def put() -> list[PutResult]:
        waiting = commits_over(datastore).put([CELL])
        answer_all(datastore.answers, [STORED])
        return await waiting

    assert asyncio.run(put()) == [STORED]


@pytest.mark.parametrize(
    ("taken_back", "error"), [(True, StorageUnavailable), (False, OutcomeUnknown)]
)
def test_a_put_whose_time_is_over_failed_only_when_it_could_be_taken_back(
    monkeypatch: pytest.MonkeyPatch, taken_back: bool, error: type[Exception]
) -> None:
    monkeypatch.setattr(commits, "PUT_TIMEOUT_S", 0.01)
    datastore = HeldDatastore(taken_back=taken_back)

    async def put() -> None:
        await commits_over(datastore).put([CELL])

    with pytest.raises(error):
        asyncio.run(put())
    answer_all(datastore.answers, [STORED])  # too late, and after the loop has ended: nobody minds


def test_a_refusal_comes_at_once() -> None:
    datastore = HeldDatastore()
    datastore.refuse = Overloaded("full")

    async def put() -> None:
        _ = commits_over(datastore).put([CELL])  # before anything is awaited

    with pytest.raises(Overloaded):
        asyncio.run(put())


def test_a_wake_up_that_fails_once_delays_no_later_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "PUT_TIMEOUT_S", 30.0)
    datastore = HeldDatastore()

    async def put_two() -> list[list[PutResult]]:
        loop, held = asyncio.get_running_loop(), commits_over(datastore)
        tasks = [asyncio.ensure_future(held.put([CELL])) for _ in range(2)]
        await asyncio.sleep(0)  # each has begun to wait
        wake = loop.call_soon_threadsafe

        def fail(*_: object) -> None:
            raise MemoryError

        loop.call_soon_threadsafe = fail  # type: ignore[assignment,method-assign]
        answer_all(datastore.answers[:1], [STORED])
        loop.call_soon_threadsafe = wake  # type: ignore[method-assign]
        answer_all(datastore.answers[1:], [STORED])
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert asyncio.run(put_two()) == [[STORED]] * 2


def test_an_answer_that_is_there_at_the_deadline_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "PUT_TIMEOUT_S", 0.01)
    datastore = HeldDatastore(taken_back=True)

    async def put() -> list[PutResult]:
        loop, waiting = asyncio.get_running_loop(), commits_over(datastore).put([CELL])

        def lost(*_: object) -> None:
            raise RuntimeError("no wake-up")

        loop.call_soon_threadsafe = lost  # type: ignore[assignment,method-assign]
        answer_all(datastore.answers, [STORED])
        return await waiting

    assert asyncio.run(put()) == [STORED]


def test_a_caller_that_has_gone_is_not_logged_as_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    datastore = HeldDatastore()

    async def put_two() -> list[PutResult]:
        held = commits_over(datastore)
        gone, stays = (asyncio.ensure_future(held.put([CELL])) for _ in range(2))
        await asyncio.sleep(0)  # each has begun to wait
        gone.cancel()
        await asyncio.sleep(0)
        answer_all(datastore.answers, [STORED, STORED])
        return await stays

    assert asyncio.run(put_two()) == [STORED]
    assert caplog.records == []
