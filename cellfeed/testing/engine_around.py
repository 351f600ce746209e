"""An engine around another one: every call of the contract passes to the inner engine.

The engines of the test kit are such ones. Each writes only the calls that it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.store.cells.cell import NewCell, StoredCell, Triple
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.dictionaries import DictionaryStore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    LogRange,
    Replica,
)
from cellfeed.store.histories import History
from cellfeed.store.limits import ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS


class EngineAround:
    """:class:`cellfeed.store.engines.contract.engine.Engine`. ``before_call`` precedes each call
    that reads or writes; it may wait and raise. Errors of the inner engine pass through."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    def before_call(self) -> None:
        """Nothing here."""

    @property
    def datastore(self) -> str:
        return self.inner.datastore

    @property
    def shards(self) -> int:
        return self.inner.shards

    @property
    def history(self) -> History:
        return self.inner.history

    @property
    def state(self) -> StateTable:
        return self.inner.state

    @property
    def indexes(self) -> IndexStore:
        return self.inner.indexes

    @property
    def dictionaries(self) -> DictionaryStore:
        return self.inner.dictionaries

    def commit_group(self, shard: int) -> str:
        return self.inner.commit_group(shard)

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        self.before_call()
        return self.inner.put(cells)

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        self.before_call()
        return self.inner.get(triples, read_from)

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        self.before_call()
        return self.inner.latest(keys, read_from)

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        self.before_call()
        return self.inner.row(row_keys, read_from, after_column)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        self.before_call()
        return self.inner.scan(shard, location, limit)

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        self.before_call()
        return self.inner.scan_many(ranges)

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        self.before_call()
        return self.inner.superseded(shard, start, end, log_start, watermark)

    def locate(self, shard: int, created_at_us: int) -> int:
        self.before_call()
        return self.inner.locate(shard, created_at_us)

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        self.before_call()
        return self.inner.heads(shards)

    def heads_since(self, mark: object | None) -> HeadChanges:
        self.before_call()
        return self.inner.heads_since(mark)

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        self.before_call()
        return self.inner.acknowledged_ends()

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        self.before_call()
        return self.inner.trim_limits(shards)

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        self.before_call()
        return self.inner.trim(shard, below, cells_max)

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        self.before_call()
        return self.inner.erase(row_key, cells_max)

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        self.before_call()
        return self.inner.row_cells(row_key, after, limit)

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        self.before_call()
        return self.inner.leader_epochs(shard)

    def columns(self) -> list[str]:
        self.before_call()
        return self.inner.columns()

    def change_token(self) -> int:
        self.before_call()
        return self.inner.change_token()

    def close(self) -> None:
        self.inner.close()
