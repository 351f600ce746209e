"""The calls of :class:`cellfeed.store.api.CellStore` as steps: each request, and the
meaning of its answer, without any I/O.

Arguments are checked here, by the code that the datastore in process uses, so bad input is refused
in the same words and never travels. A put is idempotent, so it is tried again until its deadline
after any error; see :mod:`cellfeed.store.http.calls.attempts` for the outcome when that ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from cellfeed.store.api import CellToPut, ErasedRow, Location, ReadFrom, RowKey, ShardCells
from cellfeed.store.arguments import check_datastore_name, check_key_count, checked_item
from cellfeed.store.cells.cell import Cell, NewCell, check_column_name, check_ref_key, check_row_key
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import check_shard, shard_of
from cellfeed.store.commit.put_batches import batches
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import AnswerTooLarge, InvalidRequest
from cellfeed.store.followed import checked_wanted
from cellfeed.store.http.calls.access import Access
from cellfeed.store.http.calls.answers import Asked, heads_asked, row_asked, rows_asked
from cellfeed.store.http.calls.erase import erase_row
from cellfeed.store.http.calls.fields import key_text, replica_fields
from cellfeed.store.http.calls.follows import FollowCall
from cellfeed.store.http.calls.index_query import query_index
from cellfeed.store.http.calls.log_reads import read_piece, read_pieces
from cellfeed.store.http.calls.puts import put_batch, put_batches, put_one
from cellfeed.store.http.calls.reads import read_cell, read_cells, read_rows_in_pages
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.calls.waits import wait_for
from cellfeed.store.http.log_messages import HeadsMessage, head_of
from cellfeed.store.http.messages import RowMessage, RowsMessage
from cellfeed.store.indexes.request import Filter, IndexPage, QueryOptions, check_wait_for
from cellfeed.store.limits import PUT_TIMEOUT_S
from cellfeed.store.waits.waiting import Passed, WaitOptions

CALL_TIMEOUT_S: Final = 2 * PUT_TIMEOUT_S
"""The default deadline of a call: a worker gives its last word on a put after ``PUT_TIMEOUT_S``,
and there is time to ask another one."""


class _ShardsUnknown(Exception):
    """The number of shards is needed, and no worker has said it yet."""


class DatastoreCalls:
    """Calls of one datastore on one or more workers; arguments as those of
    :class:`cellfeed.store.http.client.Client`. See :class:`cellfeed.store.api.CellStore`."""

    def __init__(
        self,
        urls: Sequence[str] | str,
        datastore: str,
        timeout_s: float,
        history: str | None,
        access: Access | None = None,
    ) -> None:
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise InvalidRequest("a client needs the address of at least one worker")
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s {timeout_s!r} must be above 0")
        self.name = check_datastore_name(datastore)
        self._shards: int | None = None
        self._requests = Requests(given, self.name, timeout_s, _known(history), access)

    def close(self) -> None:
        """Later calls raise StorageUnavailable."""
        self._requests.close()

    def history(self) -> Steps[str]:
        if self._requests.history is None:
            yield from self._heads()
        return self._requests.history or ""

    def shards(self) -> Steps[int]:
        if self._shards is None:
            self._shards = (yield from self._heads()).shards
        return self._shards

    # --- writing ----------------------------------------------------------------------------------

    def deadline(self) -> float:
        """Of a call that begins now (monotonic)."""
        return self._requests.deadline()

    def put_new_cell(
        self, cell: NewCell, deadline: float, opened: list[Exception] | None = None
    ) -> Steps[PutResult]:
        """Writes one checked cell. ``opened``: the errors that leave open whether an earlier
        request wrote it."""
        return put_one(self._requests, cell, deadline, self._shards, opened)

    def put_new_cells(self, cells: Sequence[NewCell], deadline: float) -> Steps[list[PutResult]]:
        """Writes checked cells that fit one request."""
        return put_batch(self._requests, cells, deadline, self._shards)

    def put_cells(
        self, cells: Iterable[CellToPut | NewCell | tuple[RowKey, str, int, Mapping[str, Any]]]
    ) -> Steps[list[PutResult]]:
        items = list(cells)
        try:
            checked = [checked_item(item, self._known_shards) for item in items]
        except _ShardsUnknown:
            yield from self.shards()
            checked = [checked_item(item, self._known_shards) for item in items]
        accepted = [cell for cell in checked if isinstance(cell, NewCell)]
        requests = list(batches(accepted))
        # A later failure names the shard of each of its cells.
        shards = (yield from self.shards()) if len(requests) > 1 else 0
        written = iter((yield from put_batches(requests, self._put_batch, shards)))
        return [next(written) if isinstance(cell, NewCell) else cell for cell in checked]

    def _put_batch(self, cells: Sequence[NewCell]) -> Steps[list[PutResult]]:
        return self.put_new_cells(cells, self.deadline())

    def erase_row(self, row_key: RowKey) -> Steps[ErasedRow]:
        return erase_row(self._requests, row_key)

    # --- reading ----------------------------------------------------------------------------------

    def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, read_from: ReadFrom
    ) -> Steps[Cell | None]:
        asked = Asked(
            check_row_key(row_key), check_column_name(column_name), check_ref_key(ref_key)
        )
        return read_cell(self._requests, "/cell", asked, read_from)

    def get_cell_latest(
        self, row_key: RowKey, column_name: str, read_from: ReadFrom
    ) -> Steps[Cell | None]:
        asked = Asked(check_row_key(row_key), check_column_name(column_name), None)
        return read_cell(self._requests, "/latest", asked, read_from)

    def get_row(self, row_key: RowKey, read_from: ReadFrom) -> Steps[dict[str, Cell]]:
        key = check_row_key(row_key)
        route = f"/row?{urlencode({'row_key': key_text(key), **replica_fields(read_from)})}"
        try:
            return (
                yield from self._requests.get(
                    route, RowMessage, lambda message: row_asked(message, key)
                )
            )
        except AnswerTooLarge:
            return (yield from read_rows_in_pages(self._requests, [key], read_from))[0]

    def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], read_from: ReadFrom
    ) -> Steps[list[Cell | None]]:
        check_key_count(triples)
        asked = [
            Asked(check_row_key(row_key), check_column_name(column), check_ref_key(ref_key))
            for row_key, column, ref_key in triples
        ]
        return read_cells(self._requests, "/cells/get", asked, read_from)

    def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], read_from: ReadFrom
    ) -> Steps[list[Cell | None]]:
        check_key_count(keys)
        asked = [
            Asked(check_row_key(row_key), check_column_name(column), None)
            for row_key, column in keys
        ]
        return read_cells(self._requests, "/cells/latest", asked, read_from)

    def get_rows(
        self, row_keys: Sequence[RowKey], read_from: ReadFrom
    ) -> Steps[list[dict[str, Cell]]]:
        check_key_count(row_keys)
        keys = [check_row_key(key) for key in row_keys]
        wanted = {"row_keys": [key_text(key) for key in keys], **replica_fields(read_from)}
        try:
            return (
                yield from self._requests.post(
                    "/rows", wanted, RowsMessage, lambda message: rows_asked(message, keys)
                )
            )
        except AnswerTooLarge:
            return (yield from read_rows_in_pages(self._requests, keys, read_from))

    def get_cells_for_shard(
        self, shard_no: int, location: Location, limit: int
    ) -> Steps[ShardCells]:
        check_shard(shard_no, (yield from self.shards()))
        return (yield from read_piece(self._requests, shard_no, location, limit))

    def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int
    ) -> Steps[dict[int, ShardCells]]:
        shards = yield from self.shards()
        for shard in locations:
            check_shard(shard, shards)
        return (yield from read_pieces(self._requests, locations, limit))

    def heads(self) -> Steps[dict[int, Head]]:
        heads = (yield from self._heads()).heads
        return {shard: head_of(head) for shard, head in enumerate(heads)}

    def shard_of(self, row_key: RowKey) -> Steps[int]:
        key = check_row_key(row_key)
        return shard_of(key, (yield from self.shards()))

    # --- indexes ----------------------------------------------------------------------------------

    def query_index(
        self, name: str, shard_value: Any, where: Sequence[Filter], how: QueryOptions
    ) -> Steps[IndexPage]:
        """As :meth:`cellfeed.store.datastore.Datastore.query_index`."""
        places: dict[int, int] = {}
        if how.get("wait_for"):
            places = check_wait_for(how.get("wait_for"), (yield from self.shards()))
        return (yield from query_index(self._requests, name, shard_value, where, how, places))

    # --- waiting ----------------------------------------------------------------------------------

    def wait_for(self, token: object, options: WaitOptions) -> Steps[Passed]:
        return wait_for(self._requests, token, options)

    # --- following --------------------------------------------------------------------------------

    def follow(self, column: object, shards: object, start: object) -> FollowCall:
        """A follower's side of its connections."""
        return FollowCall(
            self._requests, checked_wanted(column, shards, start), self._requests.timeout_s
        )

    # --- the number of shards ---------------------------------------------------------------------

    def _heads(self) -> Steps[HeadsMessage]:
        return self._requests.get(
            "/shards", HeadsMessage, lambda message: heads_asked(message, self.name, self._shards)
        )

    def _known_shards(self) -> int:
        if self._shards is None:
            raise _ShardsUnknown
        return self._shards


def _known(history: str | None) -> str | None:
    if history is not None and not (history.isascii() and history.isprintable() and history):
        raise InvalidRequest(f"history {ascii(history)[:80]} is not the identity of one")
    return history
