"""Notes of trims that died, settled by every worker unasked
(:mod:`cellfeed.store.indexes.trimmed`).

A trim that is killed behind its cells leaves their entries in the indexes. It may also leave rows
without the entry that they should have. Nobody has to run the trim again: a note
that a worker has seen unchanged for ``AGAIN_AFTER_S`` is settled. A trim that is only slow, or
paused, takes no harm, for any number may settle a shard.

A note may stay: the trim died before the cells went. It is looked at again once the log of its
shard begins later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import CellfeedError
from cellfeed.store.indexes.query import Indexes
from cellfeed.store.indexes.trim_notes import noted_shards
from cellfeed.store.indexes.trimmed import IndexedTrim

LOOK_EVERY_S: Final = 2.0
"""How often a worker looks for notes, in seconds: one read of the state table."""

AGAIN_AFTER_S: Final = 10.0
"""For how long a note is left to the trim that wrote it, in seconds: a step takes less than one."""

_log = logging.getLogger("cellfeed.trim")


class LeftNotes:
    """Used by one thread. ``clock``: of this process, in seconds."""

    def __init__(
        self, engine: Engine, indexes: Indexes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._clock = engine, clock
        self._trim = IndexedTrim(engine, indexes, engine.trim)
        self._seen: dict[int, tuple[frozenset[tuple[str, int]], float]] = {}
        """Of each shard its notes, with their versions, and since when they are the same."""
        self._settled: dict[int, tuple[frozenset[tuple[str, int]], int]] = {}
        """Of each shard the notes that stayed, and where its log began."""

    def run(self, stop: threading.Event) -> None:
        """Looks until ``stop`` is set. Errors are waited out."""
        while not stop.wait(LOOK_EVERY_S):
            with suppress(CellfeedError):  # the storage is away: others report that
                self.look()

    def look(self) -> list[int]:
        """One look; the shards that were settled. Raises Unavailable."""
        found, now_s = noted_shards(self._engine.state), self._clock()
        self._settled = {s: each for s, each in self._settled.items() if s in found}
        self._seen = {
            shard: self._seen[shard]
            if shard in self._seen and self._seen[shard][0] == notes
            else (notes, now_s)
            for shard, notes in found.items()
        }
        due = [s for s, (_, since_s) in self._seen.items() if now_s - since_s >= AGAIN_AFTER_S]
        heads = self._engine.heads(due) if due else {}
        settled = []
        for shard in due:
            as_it_is = self._seen[shard][0], heads[shard].log_start
            if self._settled.get(shard) != as_it_is:
                self._trim.settle(shard)
                self._settled[shard] = as_it_is
                settled.append(shard)
                _log.info("shard %d: the notes of a trim that was broken off are settled", shard)
        return settled
