"""A datastore over HTTP: :class:`cellfeed.store.api.CellStore` on one or more workers, with the
same checks and errors as in process.

Arguments are checked here, by the code that the datastore in process uses, so bad input is refused
in the same words and never travels. A put is idempotent, so it is tried again until its deadline
whatever went wrong; see :mod:`cellfeed.store.http.calls.attempts` for what is known when that
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, Unpack
from urllib.parse import quote, urlencode

from cellfeed.store.api import CellToPut, ErasedRow, Location, ReadFrom, RowKey, ShardCells
from cellfeed.store.arguments import (
    check_datastore_name,
    check_key_count,
    check_scan_limit,
    checked_item,
)
from cellfeed.store.cells.cell import (
    Cell,
    NewCell,
    PutResult,
    check_column_name,
    check_ref_key,
    check_row_key,
    new_cell,
)
from cellfeed.store.cells.sharding import check_shard, shard_of
from cellfeed.store.commit.put_batches import put_in_batches
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import (
    AnswerTooLarge,
    InvalidRequest,
    OutcomeUnknown,
)
from cellfeed.store.http.calls.answers import (
    Asked,
    heads_asked,
    index_page_asked,
    piece_asked,
    pieces_asked,
    row_asked,
    rows_asked,
)
from cellfeed.store.http.calls.fields import (
    decoded,
    key_text,
    location_text,
    put_json,
    replica_fields,
)
from cellfeed.store.http.calls.puts import check_shards, put_batch, put_result
from cellfeed.store.http.calls.reads import read_cell, read_cells, read_rows_in_pages
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.messages import (
    ErasedRowMessage,
    HeadsMessage,
    IndexPageMessage,
    PutResultMessage,
    RowMessage,
    RowsMessage,
    ShardCellsMessage,
    ShardsCellsMessage,
    head_of,
)
from cellfeed.store.indexes.definition import check_index_name
from cellfeed.store.indexes.request import Filter, IndexPage, QueryOptions, check_wait_for
from cellfeed.store.limits import PUT_TIMEOUT_S

CALL_TIMEOUT_S: Final = 2 * PUT_TIMEOUT_S
"""The default deadline of a call: a worker gives its last word on a put after ``PUT_TIMEOUT_S``,
and there is time to ask another one."""


class Client:
    """:class:`cellfeed.store.api.CellStore` over HTTP. Any number of threads may call it, and both
    sides of a ``fork()``; it makes no threads of its own.

    ``urls``: workers of the same datastore, ``http://host:port``. ``timeout_s``: the deadline of
    each call, retries included; a put of more than ``BATCH_CELLS_MAX`` cells is several requests
    with a deadline each (see :mod:`cellfeed.store.commit.put_batches`).

    All answers come from one history, ``history`` or that of the first answer. A worker that serves
    another one, a neighbour's store or a restored one, refuses every request (OtherHistory).
    ``on_wait``: called in a thread with the reason, once for each call without an answer after a
    second.
    """

    def __init__(
        self,
        urls: Sequence[str] | str,
        datastore: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        history: str | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise InvalidRequest("a client needs the address of at least one worker")
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s {timeout_s!r} must be above 0")
        self._name = check_datastore_name(datastore)
        self._requests = Requests(given, self._name, timeout_s, _checked_history(history), on_wait)
        self._shards: int | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def history(self) -> str:
        """The identity of the store that the workers serve. Give it to another client to be sure
        that it speaks to the same one."""
        if self._requests.history is None:
            self._heads()
        return self._requests.history or ""

    @property
    def shards(self) -> int:
        if self._shards is None:
            self._shards = self._heads().shards
        return self._shards

    # --- writing ----------------------------------------------------------------------------------

    def put_cell(
        self, row_key: RowKey, column_key: str, ref_key: int, body: Mapping[str, Any]
    ) -> PutResult:
        content = put_json(cell := new_cell(row_key, column_key, ref_key, body))
        answer = self._requests.call(
            "POST", "/cell", content, self._requests.deadline(), writes=True
        )
        result = put_result(decoded(answer, PutResultMessage, OutcomeUnknown))
        check_shards([cell], [result], self._shards)
        return result.or_raise()

    def put_cells(
        self, cells: Iterable[CellToPut | NewCell | tuple[RowKey, str, int, Mapping[str, Any]]]
    ) -> list[PutResult]:
        checked = [checked_item(item, lambda: self.shards) for item in cells]
        accepted = [cell for cell in checked if isinstance(cell, NewCell)]
        written = iter(
            put_in_batches(
                accepted,
                lambda batch: put_batch(self._requests, batch, self._shards),
                lambda cell: shard_of(cell.row_key, self.shards),
            )
        )
        return [next(written) if isinstance(cell, NewCell) else cell for cell in checked]

    def erase_row(self, row_key: RowKey) -> ErasedRow:
        answer = self._requests.call(
            "DELETE", f"/rows/{key_text(row_key)}", b"", self._requests.deadline(), writes=True
        )
        erased = decoded(answer, ErasedRowMessage, OutcomeUnknown)
        if erased.row_key.bytes != check_row_key(row_key):
            raise OutcomeUnknown(
                f"a worker answered an erasure of row {key_text(row_key)} with one of row"
                f" {erased.row_key}; erase it again to know"
            )
        return ErasedRow(erased.shard, erased.added_id, erased.cells, erased.kept)

    # --- reading ----------------------------------------------------------------------------------

    def get_cell(
        self, row_key: RowKey, column_key: str, ref_key: int, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return read_cell(
            self._requests,
            "/cell",
            Asked(check_row_key(row_key), check_column_name(column_key), check_ref_key(ref_key)),
            read_from,
        )

    def get_cell_latest(
        self, row_key: RowKey, column_key: str, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return read_cell(
            self._requests,
            "/latest",
            Asked(check_row_key(row_key), check_column_name(column_key), None),
            read_from,
        )

    def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "master") -> dict[str, Cell]:
        key = check_row_key(row_key)
        route = f"/row?{urlencode({'row_key': key_text(key), **replica_fields(read_from)})}"
        try:
            return self._requests.get(route, RowMessage, lambda message: row_asked(message, key))
        except AnswerTooLarge:
            return read_rows_in_pages(self._requests, [key], read_from)[0]

    def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        check_key_count(triples)
        asked = [
            Asked(check_row_key(row_key), check_column_name(column), check_ref_key(ref_key))
            for row_key, column, ref_key in triples
        ]
        return read_cells(self._requests, "/cells/get", asked, read_from)

    def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        check_key_count(keys)
        return read_cells(
            self._requests,
            "/cells/latest",
            [
                Asked(check_row_key(row_key), check_column_name(column), None)
                for row_key, column in keys
            ],
            read_from,
        )

    def get_rows(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master"
    ) -> list[dict[str, Cell]]:
        check_key_count(row_keys)
        keys = [check_row_key(key) for key in row_keys]
        wanted = {"row_keys": [key_text(key) for key in keys], **replica_fields(read_from)}
        try:
            return self._requests.post(
                "/rows", wanted, RowsMessage, lambda message: rows_asked(message, keys)
            )
        except AnswerTooLarge:
            return read_rows_in_pages(self._requests, keys, read_from)

    def get_cells_for_shard(
        self, shard_no: int, location: Location = 0, limit: int = 1000
    ) -> ShardCells:
        check_shard(shard_no, self.shards)
        asked = urlencode({"location": location_text(location), "limit": check_scan_limit(limit)})
        return self._requests.get(
            f"/shards/{shard_no}/cells?{asked}",
            ShardCellsMessage,
            lambda message: piece_asked(message, shard_no, location, limit),
        )

    def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int = 1000
    ) -> dict[int, ShardCells]:
        wanted = [
            {"shard": check_shard(shard, self.shards), "location": location_text(location)}
            for shard, location in locations.items()
        ]
        asked = {"locations": wanted, "limit": check_scan_limit(limit)}
        try:
            return self._requests.post(
                "/shards/cells",
                asked,
                ShardsCellsMessage,
                lambda message: pieces_asked(message, locations, limit),
            )
        except AnswerTooLarge:
            if len(locations) < 2:
                raise
            some = list(locations.items())
            half = len(some) // 2
            return {
                **self.get_cells_for_shards(dict(some[:half]), limit),
                **self.get_cells_for_shards(dict(some[half:]), limit),
            }

    def heads(self) -> dict[int, Head]:
        return {shard: head_of(head) for shard, head in enumerate(self._heads().heads)}

    def shard_of(self, row_key: RowKey) -> int:
        return shard_of(check_row_key(row_key), self.shards)

    # --- indexes ----------------------------------------------------------------------------------

    def query_index(
        self, name: str, shard_value: Any, where: Sequence[Filter] = (), **how: Unpack[QueryOptions]
    ) -> IndexPage:
        """As :meth:`cellfeed.store.datastore.Datastore.query_index`."""
        asked: dict[str, Any] = {
            **how,
            "wait_for": (
                list(check_wait_for(how.get("wait_for"), self.shards).items())
                if how.get("wait_for")
                else []
            ),
        }
        asked |= {
            "shard_value": list(shard_value) if isinstance(shard_value, set) else shard_value,
            "where": list(where),
        }
        try:
            return self._requests.post(
                f"/indexes/{quote(check_index_name(name))}/query",
                asked,
                IndexPageMessage,
                index_page_asked,
            )
        except TypeError as error:
            raise InvalidRequest(
                f"a value of the query is of no type that JSON has: {error}"
            ) from None

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the idle connections; later calls raise StorageUnavailable. Calls under way end as
        they would."""
        self._requests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # --- requests ---------------------------------------------------------------------------------

    def _heads(self) -> HeadsMessage:
        return self._requests.get(
            "/shards", HeadsMessage, lambda message: heads_asked(message, self._name, self._shards)
        )


def _checked_history(history: str | None) -> str | None:
    if history is not None and not (history.isascii() and history.isprintable() and history):
        raise InvalidRequest(f"history {ascii(history)[:80]} is not the identity of one")
    return history
