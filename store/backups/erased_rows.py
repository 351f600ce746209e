"""The rows that a restore of a part never puts back."""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.store.backups.erasures import known_to_state
from cellfeed.store.cells.cell import ERASED_COLUMN, Triple
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.erasures import DONE, PREFIX


class ErasedRows:
    """Rows that are never put back. ``known``: by the folder of backups.

    The state table has an entry for each erasure from before the log has a cell for it. So a look
    at the state knows of all erasures below ``_seen_below``. Of a later one the put itself finds
    the log's cell, unless a trim has passed it: then the state is read again.
    """

    def __init__(self, engine: Engine, shard: int, known: set[bytes]) -> None:
        self._engine, self._shard, self._rows = engine, shard, set(known)
        self._seen_below = -1

    def among(self, row_keys: set[bytes]) -> set[bytes]:
        """Those that were erased. Raises Unavailable."""
        head = self._engine.heads([self._shard])[self._shard]
        if head.log_start > self._seen_below:
            self._seen_below = head.next_added_id
            state = self._engine.state
            entries = [(each.key, each.value) for at in (PREFIX, DONE) for each in state.list(at)]
            of = self._engine.datastore, self._engine.shards
            self._rows |= {bytes.fromhex(each.row_key) for each in known_to_state(*of, entries)}
        marks = [Triple(row_key, ERASED_COLUMN, 0) for row_key in sorted(row_keys - self._rows)]
        found = read_all(self._engine, marks)
        self._rows |= {mark.row_key for mark, each in zip(marks, found, strict=True) if each}
        return row_keys & self._rows


def read_all(engine: Engine, triples: Sequence[Triple]) -> list[LocatedCell | None]:
    """All of them: the engine answers in pages."""
    found = list[LocatedCell | None]()
    while len(found) < len(triples):
        found += engine.get(triples[len(found) :])
    return found
