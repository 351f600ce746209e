"""Reads off the event loop: work in turns is done by one thread at a time, and a read that takes
long delays nobody but itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial

import pytest

from cellfeed.store.errors import NotFound, Overloaded, StorageUnavailable
from cellfeed.store.http.server import read_pool
from cellfeed.store.http.server.read_pool import FILE_READ_THREADS, READS_PER_TURN, ReadPool

DEADLINE_S = 60.0


def in_loop(test: Callable[[ReadPool], Awaitable[None]], threads: int, *, in_turns: bool) -> None:
    async def run() -> None:
        with closing(ReadPool(threads, in_turns=in_turns)) as pool:
            await asyncio.wait_for(test(pool), DEADLINE_S)

    asyncio.run(run())


@pytest.mark.parametrize("in_turns", [False, True])
def test_each_read_gets_its_own_result_or_error(in_turns: bool) -> None:
    def not_found(number: int) -> int:
        raise NotFound(str(number))

    async def test(pool: ReadPool) -> None:
        calls = [
            pool.run(not_found if number % 3 == 0 else abs, number)
            for number in range(3 * READS_PER_TURN)
        ]
        for number, found in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
            assert str(found) == str(number)
            assert isinstance(found, NotFound) == (number % 3 == 0)

    in_loop(test, FILE_READ_THREADS, in_turns=in_turns)


def test_reads_that_arrived_together_are_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_pool, "TURN_S", DEADLINE_S)

    async def test(pool: ReadPool) -> None:
        for _ in range(20):
            names = await asyncio.gather(
                *(pool.run(lambda: threading.current_thread().name) for _ in range(READS_PER_TURN))
            )
            assert len(set(names)) == 1

    in_loop(test, FILE_READ_THREADS, in_turns=True)


def test_a_long_read_delays_no_other_of_its_turn() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def long_read() -> str:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        return "long"

    async def test(pool: ReadPool) -> None:
        before = asyncio.create_task(pool.run(abs, -1))
        long = asyncio.create_task(pool.run(long_read))
        behind = [
            asyncio.create_task(pool.run(abs, -number)) for number in range(2, READS_PER_TURN + 5)
        ]
        assert await before == 1
        assert await asyncio.gather(*behind) == list(range(2, READS_PER_TURN + 5))
        assert begun.is_set()
        assert not long.done()
        go_on.set()
        assert await long == "long"

    in_loop(test, FILE_READ_THREADS, in_turns=True)


def test_when_every_thread_has_a_long_read_the_others_wait_and_are_done_afterwards() -> None:
    go_on = threading.Event()

    async def test(pool: ReadPool) -> None:
        long = [
            asyncio.create_task(pool.run(partial(go_on.wait, DEADLINE_S)))
            for _ in range(FILE_READ_THREADS)
        ]
        small = [asyncio.create_task(pool.run(abs, -number)) for number in range(50)]
        done, _ = await asyncio.wait([*long, *small], timeout=0.2)
        assert not done
        go_on.set()
        assert await asyncio.gather(*long) == [True] * FILE_READ_THREADS
        assert await asyncio.gather(*small) == list(range(50))

    in_loop(test, FILE_READ_THREADS, in_turns=True)


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_read_that_hangs_is_answered_in_time_and_too_many_are_refused(
    in_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pool, "READ_TIMEOUT_S", 0.1)
    monkeypatch.setattr(read_pool, "READS_WAITING_MAX", 2)
    go_on, ran = threading.Event(), threading.Event()

    async def test(pool: ReadPool) -> None:
        hanging = asyncio.create_task(pool.run(partial(go_on.wait, DEADLINE_S)))
        waiting = asyncio.create_task(pool.run(ran.set))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await pool.run(abs, -1)
        for each in (hanging, waiting):
            with pytest.raises(StorageUnavailable, match="no answer"):
                await each
        go_on.set()
        while True:  # both count until the thread has come past them
            try:
                assert await pool.run(abs, -1) == 1
                break
            except Overloaded:
                await asyncio.sleep(0.001)
            except StorageUnavailable:  # in its turn after 0.1 s, on a busy machine
                continue
        assert not ran.is_set(), "nobody waited for it any more"

    in_loop(test, 1, in_turns=in_turns)
