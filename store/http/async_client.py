"""A datastore over HTTP for event loops: the calls of
:class:`cellfeed.store.http.client.Client`, to be awaited."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from cellfeed.store.api import CellToPut, ErasedRow, Location, ReadFrom, RowKey, ShardCells
from cellfeed.store.cells.cell import Cell, NewCell, new_cell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.http.calls.asynchronous import Asynchronous
from cellfeed.store.http.calls.asynchronous_follower import AsyncFollower
from cellfeed.store.http.calls.asynchronous_puts import AsynchronousPuts
from cellfeed.store.http.calls.client_parts import ClientParts
from cellfeed.store.indexes.request import Filter, IndexPage, QueryOptions
from cellfeed.store.waits.waiting import Passed, WaitOptions


class AsyncClient(ClientParts):
    """The calls of :class:`cellfeed.store.http.client.Client` as coroutines: the same arguments,
    results and errors, and the same meaning of ``urls``, ``timeout_s``, ``history`` and
    ``share_requests``. ``history`` and ``shards`` are coroutines too, since a worker may have to be
    asked.

    Any number of tasks, loops and threads may call one client; connections belong to the loop that
    made them. A cancelled call may have been carried out: a put is idempotent, so put the same cell
    again to learn. ``on_wait``: called in the loop with the reason, once for each request without
    an answer after a second.
    """

    def _make_runner(self, on_wait: Callable[[str], None] | None, share_requests: bool) -> None:
        self._asynchronous = Asynchronous(on_wait)
        self._on_wait = on_wait
        self._run = self._asynchronous.run
        self._puts = AsynchronousPuts(self._calls, self._asynchronous) if share_requests else None

    async def history(self) -> str:
        """The identity of the store that the workers serve. Give it to another client to be sure
        that it speaks to the same one."""
        return await self._run(self._calls.history())

    async def shards(self) -> int:
        return await self._run(self._calls.shards())

    # --- writing ----------------------------------------------------------------------------------

    async def put_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, body: Mapping[str, Any]
    ) -> PutResult:
        cell = new_cell(row_key, column_name, ref_key, body)
        if self._puts is not None:
            return await self._puts.put(cell)
        alone = await self._run(self._calls.put_new_cell(cell, self._calls.deadline()))
        return alone.or_raise()

    async def put_cells(
        self, cells: Iterable[CellToPut | NewCell | tuple[RowKey, str, int, Mapping[str, Any]]]
    ) -> list[PutResult]:
        return await self._run(self._calls.put_cells(cells))

    async def erase_row(self, row_key: RowKey) -> ErasedRow:
        return await self._run(self._calls.erase_row(row_key))

    # --- reading ----------------------------------------------------------------------------------

    async def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return await self._run(self._calls.get_cell(row_key, column_name, ref_key, read_from))

    async def get_cell_latest(
        self, row_key: RowKey, column_name: str, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return await self._run(self._calls.get_cell_latest(row_key, column_name, read_from))

    async def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "master") -> dict[str, Cell]:
        return await self._run(self._calls.get_row(row_key, read_from))

    async def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        return await self._run(self._calls.get_cells(triples, read_from))

    async def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        return await self._run(self._calls.get_cells_latest(keys, read_from))

    async def get_rows(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master"
    ) -> list[dict[str, Cell]]:
        return await self._run(self._calls.get_rows(row_keys, read_from))

    async def get_cells_for_shard(
        self, shard_no: int, location: Location = 0, limit: int = 1000
    ) -> ShardCells:
        return await self._run(self._calls.get_cells_for_shard(shard_no, location, limit))

    async def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int = 1000
    ) -> dict[int, ShardCells]:
        return await self._run(self._calls.get_cells_for_shards(locations, limit))

    async def heads(self) -> dict[int, Head]:
        return await self._run(self._calls.heads())

    async def shard_of(self, row_key: RowKey) -> int:
        return await self._run(self._calls.shard_of(row_key))

    # --- indexes ----------------------------------------------------------------------------------

    async def query_index(
        self, name: str, shard_value: Any, where: Sequence[Filter] = (), **how: Unpack[QueryOptions]
    ) -> IndexPage:
        """As :meth:`cellfeed.store.datastore.Datastore.query_index`."""
        return await self._run(self._calls.query_index(name, shard_value, where, how))

    # --- waiting ----------------------------------------------------------------------------------

    async def wait_for(self, token: object, **outlet: Unpack[WaitOptions]) -> Passed:
        return await self._run(self._calls.wait_for(token, outlet))

    # --- following --------------------------------------------------------------------------------

    def follow(
        self,
        *,
        column: str | Collection[str] | None = None,
        shards: Collection[int] | None = None,
        start: object = "latest",
        on_bookmark: Callable[[str], object] | None = None,
    ) -> AsyncFollower:
        """As :meth:`cellfeed.store.api.CellStore.follow`, with ``async for``. A follower from the
        latest cells begins there with ``async with``; see
        :class:`~cellfeed.store.http.calls.asynchronous_follower.AsyncFollower`."""
        call = self._calls.follow(column, shards, start)
        return AsyncFollower(call, self._asynchronous, on_bookmark, self._on_wait)

    # --- life -------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Closes the idle connections of this loop; later calls raise StorageUnavailable. Calls
        under way end as they would."""
        self._calls.close()
        self._asynchronous.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
