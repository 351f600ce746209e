"""A datastore over HTTP: :class:`cellfeed.store.api.CellStore` on one or more workers, with the
same checks and errors as in process. :class:`Client` is for threads;
:class:`cellfeed.store.http.async_client.AsyncClient` for event loops. Both are the calls of
:mod:`cellfeed.store.http.calls.datastore`, which has no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from cellfeed.store.api import CellToPut, ErasedRow, Location, ReadFrom, RowKey, ShardCells
from cellfeed.store.cells.cell import Cell, NewCell, new_cell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.followed import Follower
from cellfeed.store.http.calls.blocking import Blocking
from cellfeed.store.http.calls.blocking_follower import BlockingFollower
from cellfeed.store.http.calls.blocking_puts import BlockingPuts
from cellfeed.store.http.calls.client_parts import ClientParts
from cellfeed.store.indexes.request import Filter, IndexPage, QueryOptions
from cellfeed.store.waits.waiting import Passed, WaitOptions


class Client(ClientParts):
    """:class:`cellfeed.store.api.CellStore` over HTTP. Any number of threads may call it, and both
    sides of a ``fork()``; it makes no threads of its own.

    ``urls``: workers of the same datastore, ``http://host:port`` or ``https://host:port``.
    ``timeout_s``: the deadline of each call, retries included; a put of more than
    ``BATCH_CELLS_MAX`` cells is several requests with a deadline each (see
    :mod:`cellfeed.store.commit.put_batches`).

    All answers come from one history, ``history`` or that of the first answer. A worker that serves
    another one, a neighbour's store or a restored one, refuses every request (OtherHistory).
    ``share_requests``: whether single puts of several threads at once share requests
    (:mod:`cellfeed.store.http.calls.shared_puts`). ``on_wait``: called in a thread with the reason,
    once for each request without an answer after a second. ``token``, ``token_file``, ``ssl_ca``,
    ``ssl_certificate`` and ``ssl_key``: :class:`~cellfeed.store.http.calls.access.AccessOptions`.
    """

    def _make_runner(self, on_wait: Callable[[str], None] | None, share_requests: bool) -> None:
        self._blocking = Blocking(on_wait)
        self._on_wait = on_wait
        self._run = self._blocking.run
        self._puts = BlockingPuts(self._calls, self._blocking) if share_requests else None

    @property
    def history(self) -> str:
        """The identity of the store that the workers serve. Give it to another client to be sure
        that it speaks to the same one."""
        return self._run(self._calls.history())

    @property
    def shards(self) -> int:
        return self._run(self._calls.shards())

    # --- writing ----------------------------------------------------------------------------------

    def put_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, body: Mapping[str, Any]
    ) -> PutResult:
        cell = new_cell(row_key, column_name, ref_key, body)
        if self._puts is not None:
            return self._puts.put(cell)
        return self._run(self._calls.put_new_cell(cell, self._calls.deadline())).or_raise()

    def put_cells(
        self, cells: Iterable[CellToPut | NewCell | tuple[RowKey, str, int, Mapping[str, Any]]]
    ) -> list[PutResult]:
        return self._run(self._calls.put_cells(cells))

    def erase_row(self, row_key: RowKey) -> ErasedRow:
        return self._run(self._calls.erase_row(row_key))

    # --- reading ----------------------------------------------------------------------------------

    def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return self._run(self._calls.get_cell(row_key, column_name, ref_key, read_from))

    def get_cell_latest(
        self, row_key: RowKey, column_name: str, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return self._run(self._calls.get_cell_latest(row_key, column_name, read_from))

    def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "master") -> dict[str, Cell]:
        return self._run(self._calls.get_row(row_key, read_from))

    def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        return self._run(self._calls.get_cells(triples, read_from))

    def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        return self._run(self._calls.get_cells_latest(keys, read_from))

    def get_rows(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master"
    ) -> list[dict[str, Cell]]:
        return self._run(self._calls.get_rows(row_keys, read_from))

    def get_cells_for_shard(
        self, shard_no: int, location: Location = 0, limit: int = 1000
    ) -> ShardCells:
        return self._run(self._calls.get_cells_for_shard(shard_no, location, limit))

    def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int = 1000
    ) -> dict[int, ShardCells]:
        return self._run(self._calls.get_cells_for_shards(locations, limit))

    def heads(self) -> dict[int, Head]:
        return self._run(self._calls.heads())

    def shard_of(self, row_key: RowKey) -> int:
        return self._run(self._calls.shard_of(row_key))

    # --- indexes ----------------------------------------------------------------------------------

    def query_index(
        self, name: str, shard_value: Any, where: Sequence[Filter] = (), **how: Unpack[QueryOptions]
    ) -> IndexPage:
        """As :meth:`cellfeed.store.datastore.Datastore.query_index`."""
        return self._run(self._calls.query_index(name, shard_value, where, how))

    # --- waiting ----------------------------------------------------------------------------------

    def wait_for(self, token: object, **outlet: Unpack[WaitOptions]) -> Passed:
        return self._run(self._calls.wait_for(token, outlet))

    # --- following --------------------------------------------------------------------------------

    def follow(
        self,
        *,
        column: str | Collection[str] | None = None,
        shards: Collection[int] | None = None,
        start: object = "latest",
        on_bookmark: Callable[[str], object] | None = None,
    ) -> Follower:
        call = self._calls.follow(column, shards, start)
        return BlockingFollower(call, self._blocking, on_bookmark, self._on_wait)

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the idle connections; later calls raise StorageUnavailable. Calls under way end as
        they would."""
        self._calls.close()
        self._blocking.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
