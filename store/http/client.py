"""A datastore over HTTP: :class:`cellfeed.store.api.CellStore` on one or more workers, with the
same checks and errors as in process.

Arguments are checked here, by the code that the datastore in process uses, so bad input is refused
in the same words and never travels. A put is idempotent, so it is tried again until its deadline
whatever went wrong; see :mod:`cellfeed.store.http.client_attempts` for what is known when that
ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec

from cellfeed.store.api import CellToPut, ErasedRow, Location, ReadFrom, RowKey, ShardCells
from cellfeed.store.arguments import (
    check_datastore_name,
    check_key_count,
    check_location,
    check_read_from,
    check_scan_limit,
    checked_item,
)
from cellfeed.store.cells.cell import (
    Cell,
    NewCell,
    Outcome,
    PutResult,
    check_column_name,
    check_ref_key,
    check_row_key,
    new_cell,
)
from cellfeed.store.cells.rows_page import with_page
from cellfeed.store.cells.sharding import check_shard, row_key_text, shard_of, shards_of
from cellfeed.store.commit.put_batches import put_in_batches
from cellfeed.store.engines.contract.values import Head, Replica
from cellfeed.store.errors import (
    AnswerTooLarge,
    CellfeedError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StorageUnavailable,
    WrongAnswer,
    error_from_code,
)
from cellfeed.store.http.client_answers import (
    Asked,
    cell_asked,
    cells_asked,
    heads_asked,
    index_page_asked,
    piece_asked,
    pieces_asked,
    row_asked,
    rows_asked,
)
from cellfeed.store.http.client_attempts import Attempts
from cellfeed.store.http.messages import (
    JSON,
    CellMessage,
    CellsMessage,
    ErasedRowMessage,
    HeadsMessage,
    IndexPageMessage,
    PutResultMessage,
    PutResultsMessage,
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

T = TypeVar("T")
R = TypeVar("R")
_name_json: Final = msgspec.json.encode


class Client:
    """:class:`cellfeed.store.api.CellStore` over HTTP. Any number of threads may call it, and both
    sides of a ``fork()``; it makes no threads of its own.

    ``urls``: workers of the same datastore, ``http://host:port``. ``timeout_s``: the deadline of
    each call, retries included; a put of more than ``BATCH_CELLS_MAX`` cells is several requests
    with a deadline each (see :mod:`cellfeed.store.commit.put_batches`).
    """

    def __init__(
        self, urls: Sequence[str] | str, datastore: str, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise InvalidRequest("a client needs the address of at least one worker")
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s {timeout_s!r} must be above 0")
        self._name = check_datastore_name(datastore)
        self._base = f"/v1/{quote(self._name)}"
        self._attempts = Attempts(given, timeout_s)
        self._shards: int | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def shards(self) -> int:
        if self._shards is None:
            self._shards = self._heads().shards
        return self._shards

    # --- writing ----------------------------------------------------------------------------------

    def put_cell(
        self, row_key: RowKey, column_key: str, ref_key: int, body: Mapping[str, Any]
    ) -> PutResult:
        content = _put_json(cell := new_cell(row_key, column_key, ref_key, body))
        answer = self._call("POST", "/cell", content, self._attempts.deadline(), writes=True)
        result = _result(_decoded(answer, PutResultMessage, OutcomeUnknown))
        self._check_shards([cell], [result])
        return result.or_raise()

    def put_cells(
        self, cells: Iterable[CellToPut | tuple[RowKey, str, int, Mapping[str, Any]]]
    ) -> list[PutResult]:
        checked = [checked_item(item, lambda: self.shards) for item in cells]
        accepted = [cell for cell in checked if isinstance(cell, NewCell)]
        written = iter(
            put_in_batches(
                accepted, self._put_batch, lambda cell: shard_of(cell.row_key, self.shards)
            )
        )
        return [next(written) if isinstance(cell, NewCell) else cell for cell in checked]

    def _put_batch(self, batch: Sequence[NewCell]) -> list[PutResult]:
        """One request; then once more those of its cells that may come to something better, until
        the deadline."""
        deadline = self._attempts.deadline()
        results = self._send_batch(batch, deadline)
        for round_no in itertools.count():
            again = [
                index
                for index, result in enumerate(results)
                if result.error is not None and result.error.retriable
            ]
            if not again or not self._attempts.pause(round_no, deadline):
                return results
            try:
                answers = self._send_batch([batch[index] for index in again], deadline)
            except CellfeedError:
                return results
            for index, answer in zip(again, answers, strict=True):
                if (
                    results[index].outcome is not Outcome.UNKNOWN
                    or answer.outcome is not Outcome.FAILED
                ):
                    results[index] = answer
        return results

    def _send_batch(self, batch: Sequence[NewCell], deadline: float) -> list[PutResult]:
        content = b'{"cells":[' + b",".join(map(_put_json, batch)) + b"]}"
        answer = _decoded(
            self._call("POST", "/cells", content, deadline, writes=True),
            PutResultsMessage,
            OutcomeUnknown,
        )
        if len(answer.results) != len(batch):
            raise OutcomeUnknown(
                f"a worker answered {len(answer.results)} results to a put of {len(batch)} cells"
            )
        results = [_result(result) for result in answer.results]
        self._check_shards(batch, results)
        return results

    def _check_shards(self, cells: Sequence[NewCell], results: Sequence[PutResult]) -> None:
        """Raises OutcomeUnknown for results of other cells, as far as their shards tell; before the
        datastore's shards are known, nothing does."""
        if self._shards is None:
            return
        for shard, result in zip(
            shards_of([cell.row_key for cell in cells], self._shards), results, strict=True
        ):
            if result.shard not in (None, shard):
                raise OutcomeUnknown(
                    f"a worker answered a put to shard {shard} with a result of shard"
                    f" {result.shard}; put the same cells again to learn more"
                )

    def erase_row(self, row_key: RowKey) -> ErasedRow:
        answer = self._call(
            "DELETE", f"/rows/{_key_text(row_key)}", b"", self._attempts.deadline(), writes=True
        )
        erased = _decoded(answer, ErasedRowMessage, OutcomeUnknown)
        if erased.row_key.bytes != check_row_key(row_key):
            raise OutcomeUnknown(
                f"a worker answered an erasure of row {_key_text(row_key)} with one of row"
                f" {erased.row_key}; erase it again to know"
            )
        return ErasedRow(erased.shard, erased.added_id, erased.cells, erased.kept)

    # --- reading ----------------------------------------------------------------------------------

    def get_cell(
        self, row_key: RowKey, column_key: str, ref_key: int, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return self._cell(
            "/cell",
            Asked(check_row_key(row_key), check_column_name(column_key), check_ref_key(ref_key)),
            read_from,
        )

    def get_cell_latest(
        self, row_key: RowKey, column_key: str, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return self._cell(
            "/latest", Asked(check_row_key(row_key), check_column_name(column_key), None), read_from
        )

    def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "master") -> dict[str, Cell]:
        key = check_row_key(row_key)
        route = f"/row?{urlencode({'row_key': _key_text(key), **_from(read_from)})}"
        try:
            return self._get(route, RowMessage, lambda message: row_asked(message, key))
        except AnswerTooLarge:
            return self._rows_in_pages([key], read_from)[0]

    def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        check_key_count(triples)
        asked = [
            Asked(check_row_key(row_key), check_column_name(column), check_ref_key(ref_key))
            for row_key, column, ref_key in triples
        ]
        return self._cells("/cells/get", asked, read_from)

    def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        check_key_count(keys)
        return self._cells(
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
        wanted = {"row_keys": [_key_text(key) for key in keys], **_from(read_from)}
        try:
            return self._post(
                "/rows", wanted, RowsMessage, lambda message: rows_asked(message, keys)
            )
        except AnswerTooLarge:
            return self._rows_in_pages(keys, read_from)

    def get_cells_for_shard(
        self, shard_no: int, location: Location = 0, limit: int = 1000
    ) -> ShardCells:
        check_shard(shard_no, self.shards)
        asked = urlencode({"location": _location_text(location), "limit": check_scan_limit(limit)})
        return self._get(
            f"/shards/{shard_no}/cells?{asked}",
            ShardCellsMessage,
            lambda message: piece_asked(message, shard_no, location, limit),
        )

    def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int = 1000
    ) -> dict[int, ShardCells]:
        wanted = [
            {"shard": check_shard(shard, self.shards), "location": _location_text(location)}
            for shard, location in locations.items()
        ]
        asked = {"locations": wanted, "limit": check_scan_limit(limit)}
        try:
            return self._post(
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
            return self._post(
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
        self._closed = True
        self._attempts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # --- requests ---------------------------------------------------------------------------------

    def _heads(self) -> HeadsMessage:
        return self._get(
            "/shards", HeadsMessage, lambda message: heads_asked(message, self._name, self._shards)
        )

    def _cell(self, route: str, asked: Asked, read_from: ReadFrom) -> Cell | None:
        try:
            return self._get(
                f"{route}?{urlencode({**_key(asked), **_from(read_from)})}",
                CellMessage,
                lambda message: cell_asked(message, asked),
            )
        except NotFound as error:
            if (
                error.code == NotFound.code
            ):  # the datastore and the path were found; only the cell is not there
                return None
            raise

    def _cells(self, route: str, asked: Sequence[Asked], read_from: ReadFrom) -> list[Cell | None]:
        keys = list(map(_key, asked))
        try:
            return self._post(
                route,
                {"keys": keys, **_from(read_from)},
                CellsMessage,
                lambda message: cells_asked(message, asked),
            )
        except AnswerTooLarge:
            # asked for pages only now: a worker of an earlier version knows none, and answers
            # whatever it is
            cells: list[Cell | None] = []
            while len(cells) < len(asked):
                wanted = {"keys": keys[len(cells) :], "pages": True, **_from(read_from)}
                rest = asked[len(cells) :]
                cells += self._post(
                    route,
                    wanted,
                    CellsMessage,
                    lambda message, rest=rest: cells_asked(message, rest, in_pages=True),  # type: ignore[misc]
                )
            return cells

    def _rows_in_pages(self, keys: Sequence[bytes], read_from: ReadFrom) -> list[dict[str, Cell]]:
        rows: list[dict[str, Cell]] = []
        first, after = 0, ""
        while True:
            asked = keys[first:]
            wanted = {
                "row_keys": list(map(_key_text, asked)),
                "pages": True,
                "after_column": after,
                **_from(read_from),
            }
            page, found = self._post(
                "/rows",
                wanted,
                RowsMessage,
                lambda message, asked=asked: (message, rows_asked(message, asked, in_pages=True)),  # type: ignore[misc]
            )
            rows = with_page(rows, found, first)
            if page.next_row is None:
                return rows
            first, after = first + page.next_row, page.after_column

    def _get(self, route: str, kind: type[T], answer: Callable[[T], R]) -> R:
        return self._answered(
            _decoded(self._call("GET", route, b"", self._attempts.deadline(), writes=False), kind),
            answer,
        )

    def _post(self, route: str, message: object, kind: type[T], answer: Callable[[T], R]) -> R:
        return self._answered(
            _decoded(
                self._call(
                    "POST",
                    route,
                    msgspec.json.encode(message),
                    self._attempts.deadline(),
                    writes=False,
                ),
                kind,
            ),
            answer,
        )

    def _answered(self, message: T, answer: Callable[[T], R]) -> R:
        try:
            return answer(message)
        except WrongAnswer:
            self._attempts.close()  # one of the connections kept is not in step with its worker
            raise

    def _call(
        self, method: str, route: str, content: bytes, deadline: float, *, writes: bool
    ) -> bytes:
        if self._closed:
            raise StorageUnavailable(f"the client of datastore {self._name} is closed")
        return self._attempts.call(
            method, self._base + route, content, JSON, deadline=deadline, writes=writes
        )


def _put_json(cell: NewCell) -> bytes:
    return b'{"row_key":"%b","column_name":%b,"ref_key":%d,"body":%b}' % (
        row_key_text(cell.row_key),
        _name_json(cell.column_name),
        cell.ref_key,
        cell.body_json,
    )


def _result(message: PutResultMessage) -> PutResult:
    error = message.error and error_from_code(message.error.error, message.error.message)
    try:
        outcome = Outcome(message.outcome)
    except ValueError:
        raise OutcomeUnknown(
            f"a worker answered the outcome {ascii(message.outcome)[:80]}, which this client does"
            " not know"
        ) from None
    return PutResult(outcome, message.shard, message.added_id, error or None)


def _decoded(content: bytes, kind: type[T], error_kind: type[CellfeedError] = CellfeedError) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise error_kind(f"a worker's answer is not as its API says: {error}") from None


def _key_text(row_key: object) -> str:
    return row_key_text(check_row_key(row_key)).decode()


def _key(asked: Asked) -> dict[str, str | int]:
    key: dict[str, str | int] = {
        "row_key": _key_text(asked.row_key),
        "column_name": asked.column_name,
    }
    return key if asked.ref_key is None else {**key, "ref_key": asked.ref_key}


def _from(read_from: object) -> dict[str, str]:
    """Said only where it is not the default: a worker of an earlier version refuses fields that it
    does not know."""
    replica = check_read_from(read_from)
    return {} if replica is Replica.MASTER else {"read_from": replica.value}


def _location_text(location: Location) -> str:
    checked = check_location(location)
    return str(checked) if isinstance(checked, int) else checked.isoformat()
