"""The gateway's picture of the logs' ends: only ever forwards, never older than the question, and
nobody waits for a head that is there already."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cellfeed.store.engines.contract.values import Head, HeadChanges, changed_since
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.following.heads import LogHeads

LONG_S = 60.0
"""Longer than a test may take: a caller that waits for as long was not woken."""


class Counters:
    """An engine of two shards whose counters the test sets; a read can be held in the middle."""

    shards = 2

    def __init__(self) -> None:
        self.watermarks = {0: 0, 1: 0}
        self.waiting_for_a_minion = 0
        """Cells of each shard that are committed, and not shown yet."""
        self.log_start = 0
        self.leader_epoch = 0
        self.erasures = {0: 0, 1: 0}
        self.reads = 0
        self.error: Exception | None = None
        self.hold: threading.Event | None = None
        self.looked = threading.Event()

    def heads_since(self, mark: dict[int, Head] | None) -> HeadChanges:
        self.reads += 1
        if self.error is not None:
            raise self.error
        waiting = self.waiting_for_a_minion
        seen = {
            shard: Head(
                self.log_start, shown, shown + waiting, self.leader_epoch, 0, self.erasures[shard]
            )
            for shard, shown in self.watermarks.items()
        }
        self.looked.set()
        if self.hold is not None:
            assert self.hold.wait(10)
        return HeadChanges(changed_since(mark or {}, seen), seen)


def run(use: Callable[[Counters, LogHeads], Coroutine[Any, Any, None]]) -> None:
    async def within(executor: ThreadPoolExecutor) -> None:
        counters = Counters()
        heads = LogHeads(counters, executor)  # type: ignore[arg-type]
        await heads.refresh()
        heads.is_read()
        await use(counters, heads)

    with ThreadPoolExecutor(2) as executor:
        asyncio.run(within(executor))


def test_a_look_that_ends_at_once_is_taken_before_its_caller_reads() -> None:
    """As Python 3.14 gives it when a thread is faster than the loop."""

    async def use(counters: Counters, heads: LogHeads) -> None:
        loop = asyncio.get_running_loop()

        def at_once(_executor: object, call: Callable[..., Any], *given: Any) -> Any:
            ended = loop.create_future()
            ended.set_result(call(*given))
            return ended

        loop.run_in_executor = at_once  # type: ignore[assignment, method-assign]
        counters.watermarks[0] = 7
        await heads.refresh()
        assert heads[0].watermark == 7

    run(use)


def test_every_listener_of_a_log_learns_of_every_erasure_in_it_once_and_of_no_other() -> None:
    told: list[int] = []

    async def within(executor: ThreadPoolExecutor) -> None:
        counters = Counters()
        counters.erasures[1] = 4
        heads = LogHeads(counters, executor, on_erasure=told.append)  # type: ignore[arg-type]
        for _ in range(2):
            await heads.refresh()  # erased bodies from before the first look may be in older files
        assert told == [1]
        told.clear()
        for erasures in (5, 6):
            counters.erasures[1] = erasures
            for _ in range(2):
                await heads.refresh()
        counters.watermarks[0] = 7
        await heads.refresh()

    with ThreadPoolExecutor(2) as executor:
        asyncio.run(within(executor))
    assert told == [1, 1]


def test_only_a_change_of_a_leader_epoch_is_counted() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        before = heads.epoch_changes
        counters.watermarks[0] = 7
        await heads.refresh()
        assert heads.epoch_changes == before
        counters.leader_epoch = 3
        for _ in range(2):
            await heads.refresh()
        assert heads.epoch_changes == before + Counters.shards

    run(use)


async def begun(heads: LogHeads, *shards: int, timeout_s: float = LONG_S) -> asyncio.Task[None]:
    """Somebody who waits already."""
    waiting = asyncio.create_task(heads.watch(shards).wait(timeout_s))
    await asyncio.sleep(0.01)
    return waiting


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():  # noqa: ASYNC110 - what is counted is counted in another thread
            await asyncio.sleep(0)


def test_a_refresh_shows_earlier_commits_although_an_older_read_is_under_way() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.hold = threading.Event()
        counters.looked.clear()
        old = asyncio.create_task(heads.refresh())
        await asyncio.get_running_loop().run_in_executor(None, counters.looked.wait)
        counters.watermarks[0] = 5  # behind the look of the read that is under way
        new = asyncio.create_task(heads.refresh())
        await asyncio.sleep(0.01)
        counters.hold.set()
        await asyncio.gather(old, new)
        assert heads[0].watermark == 5

    run(use)


def test_many_refreshes_at_once_are_few_reads() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        before = counters.reads
        counters.watermarks[1] = 3
        await asyncio.gather(*(heads.refresh() for _ in range(50)))
        assert heads[1].watermark == 3
        assert counters.reads - before <= 3

    run(use)


def test_requests_read_together_share_a_look_and_a_later_one_does_not() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.watermarks[0] = 1
        asked_s = time.monotonic()
        before = counters.reads
        for _ in range(5):
            await heads.refresh(asked_s)
        assert (counters.reads, heads[0].watermark) == (before + 1, 1)
        counters.watermarks[0] = 2
        await heads.refresh(asked_s)
        assert heads[0].watermark == 1
        await heads.refresh(time.monotonic())
        assert (counters.reads, heads[0].watermark) == (before + 2, 2)

    run(use)


def test_a_look_that_failed_is_shared_with_nobody() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.watermarks[0] = 1
        counters.error = StorageUnavailable("away")
        asked_s = time.monotonic()
        with pytest.raises(StorageUnavailable):
            await heads.refresh(asked_s)
        counters.error = None
        await heads.refresh(asked_s)
        assert heads[0].watermark == 1

    run(use)


def test_a_watermark_never_falls_after_a_late_read() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.watermarks[0] = 9
        await heads.refresh()
        counters.watermarks[0] = 4
        counters.log_start = 2
        await heads.refresh()
        assert heads[0].watermark == 9

    run(use)


def test_a_log_start_that_moves_up_is_seen() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.watermarks[0] = 9
        counters.log_start = 2
        await heads.refresh()
        assert heads[0].log_start == 2

    run(use)


def test_a_waiter_is_woken_by_its_own_shards_only() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        first, second, both = (
            await begun(heads, 0),
            await begun(heads, 1),
            await begun(heads, 0, 1),
        )
        counters.watermarks[0] = 1
        await heads.refresh()
        await asyncio.wait_for(asyncio.gather(first, both), 10)
        assert not second.done()
        counters.watermarks[1] = 1
        await heads.refresh()
        await asyncio.wait_for(second, 10)

    run(use)


def test_a_waiter_for_a_watermark_that_has_moved_already_returns_at_once() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        watch = heads.watch([0, 1])
        counters.watermarks[0] = 7
        await heads.refresh()
        await asyncio.wait_for(watch.wait(LONG_S), 10)
        assert watch.take() == {0}
        waiting = asyncio.create_task(watch.wait(LONG_S))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        counters.watermarks[1] = 7
        await heads.refresh()
        await asyncio.wait_for(waiting, 10)
        assert watch.take() == {1}

    run(use)


def test_a_wait_ends_with_its_time_and_leaves_nothing_behind() -> None:
    async def use(_counters: Counters, heads: LogHeads) -> None:
        watch = heads.watch([0, 1])
        await watch.wait(0.01)
        watch.close()
        assert heads._watches == {}
        given_up = await begun(heads, 0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert heads._waiters == 0

    run(use)


def test_an_error_of_a_background_read_is_reported_and_the_next_one_works() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        told: list[BaseException] = []
        failed = asyncio.Event()

        def tell(error: BaseException) -> None:
            told.append(error)
            failed.set()

        counters.error = OSError("the store is away")
        before = counters.reads
        for _ in range(20):
            heads.refresh_soon(tell)
        await asyncio.wait_for(failed.wait(), 10)
        assert counters.reads - before == 1, "calls while one waits to begin are one"
        assert [str(error) for error in told] == ["the store is away"]
        counters.error = None
        counters.watermarks[1] = 2
        waiting = await begun(heads, 1)
        heads.refresh_soon(tell)
        await asyncio.wait_for(waiting, 10)
        assert len(told) == 1

    run(use)


def _fail(error: BaseException) -> None:
    pytest.fail(f"the refresh failed: {error!r}")


def test_a_wake_up_without_a_reader_is_put_off_until_the_next_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cellfeed.store.following.heads.WATCHED_S", -1.0)

    async def use(counters: Counters, heads: LogHeads) -> None:
        before = counters.reads
        counters.watermarks[0] = 1
        for _ in range(3):
            heads.refresh_soon(_fail)
        assert heads._put_off is not None
        assert (counters.reads, heads[0].watermark) == (before, 0)
        waiting = asyncio.create_task(heads.watch([0]).wait(LONG_S))
        await asyncio.sleep(0)
        heads.is_read()
        await asyncio.wait_for(waiting, 10)
        assert (counters.reads, heads[0].watermark) == (before + 1, 1)

    run(use)


def test_a_waiter_is_woken_however_long_ago_the_last_read_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cellfeed.store.following.heads.WATCHED_S", -1.0)

    async def use(counters: Counters, heads: LogHeads) -> None:
        waiting = asyncio.create_task(heads.watch([0]).wait(LONG_S))
        await asyncio.sleep(0)
        counters.watermarks[0] = 1
        heads.refresh_soon(_fail)
        await asyncio.wait_for(waiting, 10)

    run(use)


def test_wake_ups_while_cells_wait_for_a_minion_cost_no_looks_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cellfeed.store.following.heads.FOLLOW_UP_S", (LONG_S,))

    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.waiting_for_a_minion = 1
        before = counters.reads
        while counters.reads == before or heads[0].next_added_id == 0:
            heads.refresh_soon(_fail)
            await asyncio.sleep(0)
        for _ in range(100):
            heads.refresh_soon(_fail)
            await asyncio.sleep(0)
        assert counters.reads - before == 1, "the next look comes after the pause"

    run(use)


def test_cells_that_reach_a_minion_after_a_pause_are_shown_without_another_wake_up() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.waiting_for_a_minion = 1
        before = counters.reads
        waiting = await begun(heads, 1)
        heads.refresh_soon(_fail)
        await until(lambda: counters.reads - before >= 2)
        counters.watermarks[1] = 1
        await asyncio.wait_for(waiting, 10)

    run(use)


def test_cells_that_no_minion_has_for_long_are_looked_for_again_at_the_next_wake_up_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cellfeed.store.following.heads.FOLLOW_UP_S", (0.0, 0.0))

    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.waiting_for_a_minion = 1
        before = counters.reads
        heads.refresh_soon(_fail)
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert counters.reads - before == 3, "a look at once, and one after each pause"
        counters.waiting_for_a_minion = 0
        counters.watermarks[1] = 1
        waiting = await begun(heads, 1)
        heads.refresh_soon(_fail)
        await asyncio.wait_for(waiting, 10)

    run(use)


def test_a_wake_up_during_a_look_that_shows_everything_is_followed_by_another_look() -> None:
    async def use(counters: Counters, heads: LogHeads) -> None:
        counters.hold = threading.Event()
        counters.looked.clear()
        heads.refresh_soon(_fail)
        await asyncio.to_thread(counters.looked.wait, 10)
        waiting = await begun(heads, 0)
        counters.watermarks[0] = 1  # committed after the look that is under way
        heads.refresh_soon(_fail)
        counters.hold.set()
        await asyncio.wait_for(waiting, 10)

    run(use)
