"""Any engine, with the ends of logs beside the entries of its indexes, as a MySQL server has
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import EntrySelect, IndexTable, Outdated, RowRefs
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.engines.contract.log_ends import (
    LogEnds,
    SelectBesideEnds,
    SelectedBesideEnds,
)
from cellfeed.store.engines.contract.values import Replica
from cellfeed.testing.engine_around import EngineAround
from tests.support.index_store_proxy import IndexStoreProxy


class EndsBesideEntries(EngineAround):
    """``together``: the ends come with the entries, not after them. ``looked_at``: rows whose cells
    were looked at. ``between``: called once entries are selected, before the ends are read."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self.together = True
        self.looked_at = 0
        self.between: Callable[[], object] = bool

    @property
    def indexes(self) -> IndexStore:
        return _Indexes(super().indexes, self)


class _Indexes(IndexStoreProxy):
    def __init__(self, store: IndexStore, around: EndsBesideEntries) -> None:
        super().__init__(store)
        self._around = around

    @property
    def beside_ends(self) -> SelectBesideEnds | None:
        return self._select

    def _select(self, table: IndexTable, wanted: Sequence[EntrySelect]) -> SelectedBesideEnds:
        entries = self.store.select(table, wanted).entries
        self._around.between()
        if not self._around.together:
            return SelectedBesideEnds(entries, None)
        ends = [
            f"{shard},{head.leader_epoch},{head.log_start},{head.next_added_id}"
            for shard, head in self._around.heads().items()
        ]
        return SelectedBesideEnds(entries, LogEnds(";".join(ends)))

    def outdated(
        self, rows: Sequence[RowRefs], columns: Sequence[str], read_from: Replica = Replica.MASTER
    ) -> Outdated:
        self._around.looked_at += len(rows)
        return self.store.outdated(rows, columns, read_from)
