"""A storage engine that behaves as a cluster of two nodes: the master dies with cells that the
minion has not got.

Such a cell is above the watermark, so no reader of the log is shown it; nor does the master show it
to anybody by its key before a minion has it. Its put is never acknowledged: its outcome is
``unknown``. With the master it is gone: the minion that is promoted gives its id to the next cell,
under a higher leader epoch. Every cell that was acknowledged is kept (E5, E7, and the watermark of
:mod:`cellfeed.store.clusters.serving.cluster`).

Cells of a put that are to be lost are never written to the engine below: they are on the master's
disk only, and this class stands for that disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from cellfeed.store.cells.cell import NewCell, StoredCell, Triple
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    Replica,
    changed_since,
)
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from cellfeed.store.limits import ADDED_ID_MAX, ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS
from cellfeed.testing.checked_state import CheckedState
from cellfeed.testing.engine_around import EngineAround
from cellfeed.testing.lost_cell import LostCell

T = TypeVar("T")


class FailingMaster(EngineAround):
    """:class:`cellfeed.store.engines.contract.engine.Engine` over another one, which is the
    minion. Logs and entries of indexes are those of the minion: they outlive the master."""

    def __init__(self, minion: Engine) -> None:
        super().__init__(minion)
        self._lock = threading.RLock()
        self._to_lose = 0
        self._away_s = 0.0
        self._away_until_s = 0.0
        self._on_master: dict[Triple, LostCell] = {}
        self._epoch_starts: dict[int, list[tuple[int, int]]] = {}
        self.lost: list[LostCell] = []
        self.promotions = 0
        # Read and written on the master. Commits are with the minion when they return.
        self._state = CheckedState(minion.state, self.check_master)

    def lose(self, cells: int, away_s: float) -> None:
        """The next ``cells`` new cells reach the master alone, and it dies. For ``away_s``
        seconds there is no master then."""
        with self._lock:
            self._to_lose += cells
            self._away_s = away_s

    def check_master(self) -> None:
        """Raises StorageUnavailable while there is none."""
        if self._is_away():
            raise StorageUnavailable("nothing written: the master is away, says the test kit")

    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until_s

    # --- writing ----------------------------------------------------------------------------------

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        with self._lock:
            self.check_master()
            if any(cell.triple in self._on_master for cell in cells):
                # time has passed since the first try: a caller that puts it again finds another
                # master, or none yet
                self._die()
                self.check_master()
            doomed = self._doomed(cells)
            if not doomed:
                return self.inner.put(cells)
            kept = [cell for cell in cells if cell.triple not in doomed]
            results = iter(self.inner.put(kept) if kept else ())
            self._keep_on_master(doomed)
            self._to_lose -= len(doomed)
            answers = [
                self._unknown(cell) if cell.triple in doomed else next(results) for cell in cells
            ]
            if not self._to_lose:
                self._die()
            return answers

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        self.check_master()
        return self.inner.trim_limits(shards)

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        with self._lock:
            self.check_master()
            return self.inner.trim(shard, below, cells_max)

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        with self._lock:
            self.check_master()
            if any(triple.row_key == row_key for triple in self._on_master):
                # cells of the row that only the master has would be left over: another one is
                # asked, or none yet
                self._die()
                self.check_master()
            return self.inner.erase(row_key, cells_max)

    def _doomed(self, cells: Sequence[NewCell]) -> list[Triple]:
        """The last ones that are new, as many as are still to be lost."""
        if not self._to_lose:
            return []
        triples = list(dict.fromkeys(cell.triple for cell in cells))
        new = [
            triple
            for triple, found in zip(triples, self.inner.get(triples), strict=True)
            if found is None
        ]
        return new[-self._to_lose :]

    def _keep_on_master(self, doomed: Sequence[Triple]) -> None:
        heads = self._heads()
        for triple in doomed:
            shard = shard_of(triple.row_key, self.shards)
            added_id = heads[shard].next_added_id + sum(
                cell.shard == shard for cell in self._on_master.values()
            )
            self._on_master[triple] = LostCell(
                UUID(bytes=triple.row_key), triple.column_name, triple.ref_key, shard, added_id
            )

    def _unknown(self, cell: NewCell) -> PutResult:
        error = OutcomeUnknown(
            "the master died before a minion had the cell, says the test kit; put it again to learn"
            " whether it was written"
        )
        return PutResult(Outcome.UNKNOWN, shard_of(cell.row_key, self.shards), error=error)

    def _die(self) -> None:
        self.lost += self._on_master.values()
        self._on_master.clear()
        self.promotions += 1
        self._away_until_s = time.monotonic() + self._away_s
        for shard, head in self.inner.heads().items():
            self._epoch_starts.setdefault(shard, []).append(
                (head.leader_epoch + self.promotions, head.next_added_id)
            )

    # --- reading ----------------------------------------------------------------------------------

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        return self._answered(self.inner.get(triples), _as_stale, read_from)

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        return self._answered(self.inner.latest(keys), _as_stale, read_from)

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        return self._answered(
            self.inner.row(row_keys, after_column=after_column),
            lambda row: [found._replace(stale=True) for found in row],
            read_from,
        )

    def _answered(self, found: list[T], as_stale: Callable[[T], T], read_from: Replica) -> list[T]:
        """The minion's cells, as the node that was asked answers. While there is no master, the
        minion answers for the cells it has."""
        if read_from is Replica.MASTER and not self._is_away():
            return found
        if self._is_away() and not all(found):
            self.check_master()  # "not there" is only the master's to say
        return [as_stale(each) for each in found]

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        self.check_master()
        return self.inner.row_cells(row_key, after, limit)

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        with self._lock:
            heads = self._heads(shards)
            if self._is_away():
                return {
                    shard: head._replace(next_added_id=ADDED_ID_MAX)
                    for shard, head in heads.items()
                }
            for cell in self._on_master.values():
                if cell.shard in heads:
                    heads[cell.shard] = heads[cell.shard]._replace(next_added_id=cell.added_id + 1)
            return heads

    def heads_since(self, mark: object | None) -> HeadChanges:
        heads = self.heads()
        changed = changed_since(mark, heads) if isinstance(mark, dict) else heads
        return HeadChanges(changed, heads)

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        with self._lock:
            if self._is_away():
                return {}
            return {
                shard: (head.leader_epoch, head.next_added_id)
                for shard, head in self.heads().items()
            }

    def _heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        return {
            shard: head._replace(leader_epoch=head.leader_epoch + self.promotions)
            for shard, head in self.inner.heads(shards).items()
        }

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        with self._lock:
            return [*self.inner.leader_epochs(shard), *self._epoch_starts.get(shard, ())]

    def change_token(self) -> int:
        return self.inner.change_token() + self.promotions

    @property
    def state(self) -> StateTable:
        return self._state


def _as_stale(found: LocatedCell | None) -> LocatedCell | None:
    return found._replace(stale=True) if found is not None else None
