"""A reader's wait for the heads of some shards to change."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol


class WatchedHeads(Protocol):
    """The heads that watches follow, as :class:`cellfeed.store.following.heads.LogHeads`
    has them."""

    def add_watch(self, shard: int, watch: HeadWatch) -> None: ...

    def remove_watch(self, shard: int, watch: HeadWatch) -> None: ...

    def somebody_waits(self) -> AbstractContextManager[None]:
        """Wake-ups are followed until the end of the block."""
        ...


class HeadWatch:
    """Shards whose heads somebody follows. ``changed``: those with another head since the last
    :meth:`take`."""

    def __init__(self, heads: WatchedHeads) -> None:
        self._heads = heads
        self._shards: set[int] = set()
        self._woken = False
        self._waiting: asyncio.Future[None] | None = None
        self.changed: set[int] = set()

    def follow(self, shard: int) -> None:
        if shard not in self._shards:
            self._shards.add(shard)
            self._heads.add_watch(shard, self)

    def unfollow(self, shard: int) -> None:
        if shard in self._shards:
            self._shards.discard(shard)
            self._heads.remove_watch(shard, self)

    def close(self) -> None:
        """Stops following. Wakes its waiting reader."""
        for shard in list(self._shards):
            self.unfollow(shard)
        self.wake()

    def take(self) -> set[int]:
        """The shards that have changed. From here on :meth:`wait` waits for another change."""
        changed, self.changed, self._woken = self.changed, set(), False
        return changed

    def note(self, shard: int, *, wakes: bool) -> None:
        """The shard has another head. ``wakes``: there may be more to read."""
        self.changed.add(shard)
        if wakes:
            self.wake()

    def wake(self) -> None:
        self._woken = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Returns when it was woken since the last :meth:`take`, or after ``timeout_s``. One task
        waits at a time."""
        if self._woken:
            return
        self._waiting = asyncio.get_running_loop().create_future()
        with self._heads.somebody_waits():
            await asyncio.wait([self._waiting], timeout=timeout_s)
