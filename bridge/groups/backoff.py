"""Shards that could not be brought on just now, because the store or the coordination is away: each
is tried again soon, and less often the longer it lasts.

While a master is away, every try of every one of its shards fails at once; without a wait a worker
would spend a core on asking.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WAIT_FIRST_S: Final = 0.02
"""A read or a commit that was cut off mostly goes well at the next try."""

WAIT_MAX_S: Final = 0.5
"""How much later than it could a shard continues, at most: a promotion takes longer."""


class Backoff:
    """Per shard, in memory. Used by one thread. ``clock_s`` is a monotonic clock in seconds."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._waits: dict[int, tuple[float, float]] = {}
        """When a shard is tried again, and how long it has waited for that."""

    def failed(self, shard: int) -> None:
        """The shard waits: twice as long as after the try before, where that was in vain, too."""
        _, before_s = self._waits.get(shard, (0.0, WAIT_FIRST_S / 2))
        wait_s = min(2 * before_s, WAIT_MAX_S)
        self._waits[shard] = (self._clock_s() + wait_s, wait_s)

    def forget(self, shard: int) -> None:
        """A try went well, or the shard is another worker's: the next failure begins with the
        shortest wait."""
        self._waits.pop(shard, None)

    def has_to_wait(self, shard: int) -> bool:
        """Whether it is too early for the shard's next try."""
        return bool(self._waits) and self._clock_s() < self._waits.get(shard, (0.0, 0.0))[0]
