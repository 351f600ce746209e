"""Requests of one connection that were read and wait for their turn: few large ones, or many small
ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeVar

from cellfeed.bridge.gateway.limits import (
    REQUESTS_AHEAD_MAX,
    SMALL_REQUESTS_AHEAD_BYTES,
    SMALL_REQUESTS_AHEAD_MAX,
)

T = TypeVar("T")


class RequestQueue(asyncio.Queue[tuple[T, int]]):
    """Requests, each with the bytes of its frame."""

    def _init(self, maxsize: int) -> None:
        del maxsize
        self._waiting: deque[tuple[T, int]] = deque()
        self._bytes = 0

    def qsize(self) -> int:
        return len(self._waiting)

    def full(self) -> bool:
        """Whether the next request waits in its socket."""
        return len(self._waiting) >= SMALL_REQUESTS_AHEAD_MAX or (
            len(self._waiting) >= REQUESTS_AHEAD_MAX and self._bytes >= SMALL_REQUESTS_AHEAD_BYTES
        )

    def empty(self) -> bool:
        return not self._waiting

    def _put(self, item: tuple[T, int]) -> None:
        self._waiting.append(item)
        self._bytes += item[1]

    def _get(self) -> tuple[T, int]:
        request, frame_bytes = self._waiting.popleft()
        self._bytes -= frame_bytes
        return request, frame_bytes
