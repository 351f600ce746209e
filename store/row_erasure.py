"""An erasure of a row, step by step, from its note on record to the last body."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from cellfeed.store.api import ErasedRow
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.erasures import ErasureNotes
from cellfeed.store.errors import (
    CellfeedError,
    OutcomeUnknown,
    StaleWriter,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.indexes.erased import take_out
from cellfeed.store.indexes.query import Indexes
from cellfeed.store.indexes.trimmed import IndexedTrim

declare(
    "datastore.erase.noted",
    "datastore.erase.after_poke",
    "datastore.erase.taken_out",
    "datastore.erase.before_end",
)


class RowErasure:
    """Erasures in one datastore. ``trim`` is a step of its trim, ``poke`` wakes its readers."""

    def __init__(
        self,
        engine: Engine,
        indexes: Indexes,
        notes: ErasureNotes,
        trim: Callable[[int, int], int],
        poke: Callable[[], None],
    ) -> None:
        self._engine, self._indexes, self._notes = engine, indexes, notes
        self._trim, self._poke = trim, poke
        self.afterwards: list[Callable[[UUID], object]] = []
        """Called with the row key at the end of each erasure."""

    def erase(self, row_key: UUID) -> ErasedRow:
        """Notes the erasure, and does it. Raises OutcomeUnknown where it is not done yet."""
        version = self._notes.begin(row_key)
        failpoint("datastore.erase.noted")
        try:
            return self.end(row_key, version)
        except (Unavailable, StaleWriter) as error:
            # It is on record, so nobody can say that nothing will come of it.
            raise OutcomeUnknown(
                f"row {row_key} is not erased, or in part; a worker finishes it by itself, or erase"
                f" it again: {error}"
            ) from error

    def end(self, row_key: UUID, version: int) -> ErasedRow:
        """An erasure that is on record, with that version of its note
        (:mod:`cellfeed.store.erasures`)."""
        try:
            erased = self._erase(row_key)
        except CellfeedError as error:
            with suppress(CellfeedError):
                self._notes.failed(row_key, version, error)
            raise
        failpoint("datastore.erase.before_end")
        self._notes.end(row_key, version, erased.added_id)
        return erased

    def _erase(self, row_key: UUID) -> ErasedRow:
        key = row_key.bytes
        # First the log gets its entry, then the indexes lose theirs, then the bodies go: only
        # the bodies say where the entries are.
        self._engine.erase(key, 0)
        self._poke()
        failpoint("datastore.erase.after_poke")
        take_out(self._engine, self._indexes, key)
        # A trim that died has left entries of cells that are gone, and notes of their values.
        shard = shard_of(key, self._engine.shards)
        IndexedTrim(self._engine, self._indexes, self._trim).settle(shard, erased=key)
        failpoint("datastore.erase.taken_out")
        cells, done = 0, False
        while not done:
            step = self._engine.erase(key)
            cells, done = cells + step.cells, step.done
            self._poke()
        for forget in self.afterwards:
            forget(row_key)
        return ErasedRow(step.shard, step.added_id, cells, list(step.kept))
