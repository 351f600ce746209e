"""An index version as a trigger group: it gets the cells of its columns in batches, in the order of
each shard's log, at least once.

The trigger runtime sees to it that no cell is left out, that one worker has a shard, and that saved
offsets survive; the keeper that a cell may come twice, and that a worker which lost its shard does
no harm (:mod:`cellfeed.store.indexes.version`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from cellfeed.bridge.coordination.contract import Offsets
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.query import Positions
from cellfeed.store.indexes.version import IndexVersion

BATCH_CELLS: Final = 5_000
"""Cells of one transaction of entries. They lie all over the index: the more of them, the more
share a page that is written."""


class Throttle:
    """At most so many cells a second, all threads together; None for no limit."""

    def __init__(self, cells_per_s: float | None) -> None:
        self.cells_per_s = cells_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def wait(self, cells: int) -> None:
        """Returns when so many more may be done."""
        if self.cells_per_s is None:
            return
        with self._lock:
            begin_s = max(time.monotonic(), self._free_at_s)
            self._free_at_s = begin_s + cells / self.cells_per_s
        time.sleep(max(0.0, begin_s - time.monotonic()))


@dataclass(frozen=True)
class _IndexTrigger(Trigger):
    """Gives its cells as they are stored: the keeper decodes the ones it needs."""

    @property
    def definition(self) -> None:
        """Its group is one version of one index: no other trigger gets that name."""
        return None

    def caller(self, store: CellStore, shard: int) -> Callable[[Sequence[StoredCell]], object]:
        return lambda cells: self.function(shard, cells)


def index_trigger(
    version: IndexVersion,
    keeper: IndexKeeper,
    throttle: Throttle,
    backlog_turn: AbstractContextManager[object] | None = None,
) -> Trigger:
    """The trigger whose work it is to keep this version's entries. ``backlog_turn``: see
    :class:`Trigger`."""

    def keep_entries(shard: int, cells: Sequence[StoredCell]) -> None:
        throttle.wait(len(cells))
        keeper.apply(shard, cells)

    # A batch that waits for its turn holds up the end of its worker: it is no more than a second's
    # work. Nor are cells of many shards to wait together.
    batch = (
        BATCH_CELLS
        if throttle.cells_per_s is None
        else max(1, min(BATCH_CELLS, int(throttle.cells_per_s)))
    )
    first, *more = version.definition.columns
    return _IndexTrigger(
        keep_entries,
        first,
        version.group,
        batch=batch,
        more_columns=(*more, ERASED_COLUMN),
        saves_lazily=True,
        together=keeper.apply_together if throttle.cells_per_s is None else None,
        backlog_turn=backlog_turn or nullcontext(),
    )


def index_positions(offsets: Offsets, topic: str) -> Positions:
    """Tells how far a group has come in each shard of the datastore ``topic``."""

    def positions(group: str) -> dict[int, int]:
        return {
            shard: each.offset
            for (name, shard), each in offsets.fetch_offsets(group).items()
            if name == topic
        }

    return positions
