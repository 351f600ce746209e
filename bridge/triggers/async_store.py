"""The store for triggers that are coroutine functions: its calls wait in threads, so the event loop
never does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from cellfeed.store.api import (
    CellStore,
    CellToPut,
    ErasedRow,
    Location,
    ReadFrom,
    RowKey,
    ShardCells,
)
from cellfeed.store.cells.cell import Cell, NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.waits.waiting import Passed, WaitOptions


class AsyncStore:
    """The calls of :class:`cellfeed.store.http.async_client.AsyncClient`, but ``follow``, over a
    store in process: the same arguments, results and errors. A cancelled call may have been carried
    out."""

    def __init__(self, store: CellStore) -> None:
        self._store = store

    @property
    def name(self) -> str:
        return self._store.name

    async def shards(self) -> int:
        return await asyncio.to_thread(lambda: self._store.shards)

    async def put_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, body: Mapping[str, Any]
    ) -> PutResult:
        return await asyncio.to_thread(self._store.put_cell, row_key, column_name, ref_key, body)

    async def put_cells(
        self, cells: Iterable[CellToPut | NewCell | tuple[RowKey, str, int, Mapping[str, Any]]]
    ) -> list[PutResult]:
        return await asyncio.to_thread(self._store.put_cells, cells)

    async def wait_for(self, token: object, **outlet: Unpack[WaitOptions]) -> Passed:
        return await asyncio.to_thread(lambda: self._store.wait_for(token, **outlet))

    async def erase_row(self, row_key: RowKey) -> ErasedRow:
        return await asyncio.to_thread(self._store.erase_row, row_key)

    async def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return await asyncio.to_thread(
            lambda: self._store.get_cell(row_key, column_name, ref_key, read_from=read_from)
        )

    async def get_cell_latest(
        self, row_key: RowKey, column_name: str, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return await asyncio.to_thread(
            lambda: self._store.get_cell_latest(row_key, column_name, read_from=read_from)
        )

    async def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "master") -> dict[str, Cell]:
        return await asyncio.to_thread(lambda: self._store.get_row(row_key, read_from=read_from))

    async def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        return await asyncio.to_thread(lambda: self._store.get_cells(triples, read_from=read_from))

    async def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        return await asyncio.to_thread(
            lambda: self._store.get_cells_latest(keys, read_from=read_from)
        )

    async def get_rows(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master"
    ) -> list[dict[str, Cell]]:
        return await asyncio.to_thread(lambda: self._store.get_rows(row_keys, read_from=read_from))

    async def get_cells_for_shard(
        self, shard_no: int, location: Location = 0, limit: int = 1000
    ) -> ShardCells:
        return await asyncio.to_thread(self._store.get_cells_for_shard, shard_no, location, limit)

    async def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int = 1000
    ) -> dict[int, ShardCells]:
        return await asyncio.to_thread(self._store.get_cells_for_shards, locations, limit)

    async def heads(self) -> dict[int, Head]:
        return await asyncio.to_thread(self._store.heads)

    async def shard_of(self, row_key: RowKey) -> int:
        return await asyncio.to_thread(self._store.shard_of, row_key)
