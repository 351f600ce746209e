"""Requests that were read ahead: few large ones, many small ones, in their order."""

from __future__ import annotations

import asyncio

from cellfeed.bridge.gateway.limits import (
    REQUESTS_AHEAD_MAX,
    SMALL_REQUESTS_AHEAD_BYTES,
    SMALL_REQUESTS_AHEAD_MAX,
)
from cellfeed.bridge.gateway.wire.request_queue import RequestQueue


def fill(queue: RequestQueue[int], frame_bytes: int) -> int:
    """How many there is room for."""
    while not queue.full():
        queue.put_nowait((queue.qsize(), frame_bytes))
    return queue.qsize()


def test_many_small_requests_are_read_ahead_and_few_large_ones() -> None:
    assert fill(RequestQueue[int](), 100) == SMALL_REQUESTS_AHEAD_MAX
    assert fill(RequestQueue[int](), SMALL_REQUESTS_AHEAD_BYTES) == REQUESTS_AHEAD_MAX
    queue = RequestQueue[int]()
    frame_bytes = 1_000
    held = fill(queue, frame_bytes) * frame_bytes
    assert SMALL_REQUESTS_AHEAD_BYTES <= held < SMALL_REQUESTS_AHEAD_BYTES + frame_bytes


def test_requests_leave_the_queue_in_order_and_make_room_for_waiting_ones() -> None:
    async def use() -> list[int]:
        queue = RequestQueue[int]()
        first = fill(queue, SMALL_REQUESTS_AHEAD_BYTES)
        waiting = asyncio.create_task(queue.put((first, SMALL_REQUESTS_AHEAD_BYTES)))
        await asyncio.sleep(0)
        assert not waiting.done()
        found = [(await queue.get())[0]]
        await waiting
        while not queue.empty():
            found.append((await queue.get())[0])
        return found

    assert asyncio.run(use()) == list(range(REQUESTS_AHEAD_MAX + 1))
