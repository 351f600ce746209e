"""The logs' ends as an event loop knows them, kept fresh by wake-ups and by polling; and the
readers that wait for them to move: the fetches of a gateway, the followers at a worker. The cost of
a look, and of waking the waiting readers, grows with the changes since the last one.

A wake-up is a hint: it makes the counters be read at once. Without one they are looked at every
``POLL_INTERVAL_S``. Where cells are shown only once a minion has them, a wake-up comes a
millisecond or two too early: the counters are looked at again, in small steps, until the committed
cells are shown. Wake-ups that come meanwhile are met by the next of these looks: a look asks every
node of every cluster, so under load they are most of the cost of a new cell.

Every difference between two looks reaches every follower of the shard: the store reports the
changes since a mark (E28). The mark moves only when those changes were taken here. A look that
fails, or whose callers are gone, loses none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Final

from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head, HeadChanges
from cellfeed.store.following.head_watch import HeadWatch
from cellfeed.store.limits import ADDED_ID_MAX

FOLLOW_UP_S: Final = (*[0.001] * 10, *[0.003] * 10, *[0.01] * 10)
"""Waits between looks at the counters while committed cells wait for a minion, in seconds: a
healthy one has them after 1 to 16 ms."""

WATCHED_S: Final = 5.0
"""So long after the last read of a log, wake-ups are followed at once. Behind that the counters are
looked at as if none came, until somebody reads again."""

POLL_INTERVAL_S: Final = 0.1
"""How often the counters are looked at when no wake-up comes: the cost of a lost one."""


class LogHeads:
    """Heads of every shard. Watermarks only rise here, in whichever order two reads of them end
    (I9). Calls ``on_trim(shard, log_start)`` when a log's start has risen. Calls
    ``on_erasure(shard)`` when bodies of the shard were erased: since the last look, or before the
    first one."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        on_trim: Callable[[int, int], None] = lambda _shard, _log_start: None,
        on_erasure: Callable[[int], None] = lambda _shard: None,
    ) -> None:
        self._engine = engine
        self._on_erasure = on_erasure
        self._executor = executor
        self._on_trim = on_trim
        self._heads: dict[int, Head] = {}
        self._unshown: set[int] = set()
        """Shards with cells that are committed, and not shown yet."""
        self._watches: dict[int, set[HeadWatch]] = {}
        self._mark: object | None = None
        """Of the last look whose changes are known here."""
        self._reading: asyncio.Future[HeadChanges] | None = None
        self._begun_s = float("-inf")
        """When the last look began."""
        self.epoch_changes = 0
        """How often a leader epoch has become another one."""
        self._woken = self._following = False
        self._waiters = 0
        self._read_s = float("-inf")
        """When somebody last read the logs."""
        self._put_off: Callable[[BaseException], None] | None = None
        """Set when there was a wake-up while no caller waited: called when its look failed."""

    def __getitem__(self, shard: int) -> Head:
        return self._heads[shard]

    def watermark(self, shard: int) -> int:
        """As far as the shard's log was read here; 0 before the first look. In any thread."""
        head = self._heads.get(shard)
        return 0 if head is None else head.watermark

    async def refresh(self, asked_s: float | None = None) -> None:
        """Reads the counters. Commits made before this call are seen when it returns; with
        ``asked_s``, those before that moment of ``time.monotonic``: requests that were read
        together share a look, and some clients send one for each partition."""
        await asyncio.shield(await self._look(asked_s))

    async def _look(self, asked_s: float | None) -> asyncio.Future[HeadChanges]:
        """A look that began late enough, ended or not."""
        if self._reading is not None:
            if asked_s is not None and self._begun_s >= asked_s and not _has_failed(self._reading):
                return self._reading
            # It may have come before the caller's commit: only one that begins from here on counts.
            await asyncio.wait([self._reading])
        if self._reading is None or self._reading.done():
            self._begun_s = time.monotonic()
            self._reading = asyncio.get_running_loop().run_in_executor(
                self._executor, self._engine.heads_since, self._mark
            )
            # Before anybody who waits for it. Python 3.14 may give a look that has ended already:
            # waiting for that one runs no callback first.
            if self._reading.done():
                self._looked(self._reading)
            else:
                self._reading.add_done_callback(self._looked)
        return self._reading

    def _looked(self, reading: asyncio.Future[HeadChanges]) -> None:
        if not _has_failed(reading):
            changes = reading.result()
            self._take(changes.heads)
            self._mark = changes.mark

    def refresh_soon(self, on_error: Callable[[BaseException], None]) -> None:
        """Reads the counters in the background until all that was committed before this call is
        shown, or has waited for too long; many calls are one. Put off while nobody reads: a look
        for each commit asks all nodes of all clusters, for nobody."""
        if not self._waiters and time.monotonic() - self._read_s > WATCHED_S:
            self._put_off = on_error
            return
        self._woken = True
        if self._following:
            return
        self._following = True

        async def run() -> None:
            try:
                await self._follow()
            except Exception as error:
                on_error(error)
            finally:
                self._following = False

        task = asyncio.get_running_loop().create_task(run())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    def is_read(self) -> None:
        """Somebody reads the logs: wake-ups are followed, and so is one that was put off."""
        self._read_s = time.monotonic()
        on_error, self._put_off = self._put_off, None
        if on_error is not None:
            self.refresh_soon(on_error)

    async def _follow(self) -> None:
        """One look after the other, with a pause between them while committed cells are not shown.

        A wake-up during a look may be for a commit that the look missed, so another look follows.
        Nothing else runs between the last check for a wake-up and the end. A wake-up during a pause
        waits for the pause's rest, 10 ms at most.
        """
        pauses_s = iter(FOLLOW_UP_S)
        while True:
            if self._woken:
                self._woken = False
                pauses_s = iter(FOLLOW_UP_S)
            await self.refresh()
            if self._unshown and (wait_s := next(pauses_s, None)) is not None:
                await asyncio.sleep(wait_s)
            elif not self._woken:
                return

    def watch(self, shards: Iterable[int] = ()) -> HeadWatch:
        """For somebody who waits for these shards' heads to change."""
        watch = HeadWatch(self)
        for shard in shards:
            watch.follow(shard)
        return watch

    @contextmanager
    def somebody_waits(self) -> Iterator[None]:
        """Wake-ups are followed until the end of the block, and for a while behind it."""
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1
            self._read_s = time.monotonic()

    def add_watch(self, shard: int, watch: HeadWatch) -> None:
        self._watches.setdefault(shard, set()).add(watch)

    def remove_watch(self, shard: int, watch: HeadWatch) -> None:
        watches = self._watches[shard]
        watches.discard(watch)
        if not watches:
            del self._watches[shard]

    def _take(self, heads: dict[int, Head]) -> None:
        for shard, head in heads.items():
            known = self._heads.get(shard)
            if known == head or (known is not None and head.watermark < known.watermark):
                continue
            self._heads[shard] = head
            if known is None or head.leader_epoch != known.leader_epoch:
                self.epoch_changes += 1
            if head.erasures != (known.erasures if known is not None else 0):
                self._on_erasure(shard)
            if head.log_start > (known.log_start if known is not None else 0):
                self._on_trim(shard, head.log_start)
            if head.watermark < head.next_added_id < ADDED_ID_MAX:
                self._unshown.add(shard)
            else:
                self._unshown.discard(shard)
            wakes = (
                known is None
                or head.watermark > known.watermark
                or head.log_start > known.log_start
                or head.leader_epoch > known.leader_epoch
            )
            for watch in self._watches.get(shard, ()):
                watch.note(shard, wakes=wakes)


def _has_failed(reading: asyncio.Future[HeadChanges]) -> bool:
    return reading.done() and (reading.cancelled() or reading.exception() is not None)


_tasks: set[asyncio.Task[None]] = set()
"""Background reads under way: the event loop keeps only weak references to its tasks."""
