"""The read routes, and the one that erases: thin Litestar handlers over the datastore's own calls,
which block and therefore run in the read pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast
from uuid import UUID

from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from litestar.response import Response
from litestar.response.base import ASGIResponse

from cellfeed.store.api import Location
from cellfeed.store.cells.cell import Cell, check_row_key
from cellfeed.store.cells.rows_page import RowsPage
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    AnswerTooLarge,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StorageUnavailable,
    UnknownDatastore,
)
from cellfeed.store.http.messages import (
    JSON,
    MSGPACK,
    CellMessage,
    CellsMessage,
    ErasedRowMessage,
    GetCellsMessage,
    GetLatestMessage,
    GetRowsMessage,
    HeadMessage,
    HeadsMessage,
    RowMessage,
    RowsMessage,
    ScanShardsMessage,
    ShardCellsMessage,
    ShardsCellsMessage,
    cell_message,
    shard_cells_message,
)
from cellfeed.store.http.server.asgi import Receive, Scope, read_body
from cellfeed.store.http.server.query import location_from, strict_query
from cellfeed.store.http.server.read_pool import ReadPool
from cellfeed.store.http.server.requests import Message, message_from
from cellfeed.store.http.server.responses import encoded, media_type_of, wants_msgpack
from cellfeed.store.limits import (
    COLUMN_NAME_BYTES_MAX,
    HTTP_BODY_BYTES_MAX,
    READ_BYTES_MAX,
    SCAN_CELLS_MAX,
    SCAN_SHARDS_BYTES_MAX,
)

RowKey = Annotated[str, Parameter(description="A UUID as text.")]
Column = Annotated[
    str, Parameter(description=f"A column name, 1 to {COLUMN_NAME_BYTES_MAX} bytes of UTF-8.")
]
Ref = Annotated[int, Parameter(description="A signed 64-bit integer.")]
ReadFromParameter = Annotated[
    Literal["master", "minion"],
    Parameter(
        description=(
            "Where the read goes first; cells from a minion are `stale`: a later cell may not"
            " have arrived there."
        )
    ),
]
From = Annotated[
    str,
    Parameter(description="The next added_id to read, or an RFC 3339 timestamp with a time zone."),
]
Limit = Annotated[int, Parameter(description=f"At most so many cells, 1 to {SCAN_CELLS_MAX}.")]
Name = Annotated[str, Parameter(description="The datastore's name.")]
Shard = Annotated[int, Parameter(description="A shard number, from 0.")]


class ReadState(State):
    """The shared state of the handlers: set once by the app."""

    datastore: Datastore
    reads: ReadPool


class NegotiatedResponse(Response[Any]):
    """JSON, or MessagePack for a caller that accepts that alone."""

    def to_asgi_response(
        self, app: Any, request: Request[Any, Any, Any], **settings: Any
    ) -> ASGIResponse:
        if isinstance(self.content, bytes):  # the schema pages, which are bytes of their own type
            return super().to_asgi_response(app, request, **settings)
        msgpack = wants_msgpack(plain_scope(request))
        self.content = encoded(self.content, msgpack=msgpack)
        self.media_type = MSGPACK if msgpack else JSON
        return super().to_asgi_response(app, request, **settings)


def known_datastore(state: ReadState, name: str) -> Datastore:
    """The worker's datastore, when that is the one asked for. Raises UnknownDatastore."""
    if name != state.datastore.name:
        raise UnknownDatastore(
            f"datastore {ascii(name)[:80]} is not served here; this worker serves"
            f" {state.datastore.name!r}"
        )
    return state.datastore


@get(
    "/v1/{datastore:str}/cell",
    tags=["cells"],
    summary="One cell by its key",
    opt={"query": ("row_key", "column_name", "ref_key", "read_from")},
)
async def get_cell(
    state: ReadState,
    datastore: Name,
    row_key: RowKey,
    column_name: Column,
    ref_key: Ref,
    read_from: ReadFromParameter = "master",
) -> CellMessage:
    """404 ``not_found`` when there is no such cell."""
    call = known_datastore(state, datastore).get_cell
    return _found(await state.reads.run(call, row_key, column_name, ref_key, read_from=read_from))


@get(
    "/v1/{datastore:str}/latest",
    tags=["cells"],
    summary="The cell with the highest ref key",
    opt={"query": ("row_key", "column_name", "read_from")},
)
async def get_latest(
    state: ReadState,
    datastore: Name,
    row_key: RowKey,
    column_name: Column,
    read_from: ReadFromParameter = "master",
) -> CellMessage:
    """404 ``not_found`` when the row has no cell in this column."""
    call = known_datastore(state, datastore).get_cell_latest
    return _found(await state.reads.run(call, row_key, column_name, read_from=read_from))


@get(
    "/v1/{datastore:str}/row",
    tags=["cells"],
    summary="The latest cell of every column of a row",
    opt={"query": ("row_key", "read_from")},
)
async def get_row(
    state: ReadState, datastore: Name, row_key: RowKey, read_from: ReadFromParameter = "master"
) -> RowMessage:
    """``cells`` is empty when there is no such row. 413 ``answer_too_large``: read it in pages, as
    a batch of one row."""
    page = _whole(
        await state.reads.run(
            known_datastore(state, datastore).get_rows_page, [row_key], read_from=read_from
        )
    )
    return _row(page.rows[0])


@post(
    "/v1/{datastore:str}/cells/get",
    tags=["batches"],
    summary="Many cells by their keys",
    status_code=200,
    opt={"body": GetCellsMessage},
)
async def get_cells(
    state: ReadState, datastore: Name, request: Request[Any, Any, Any]
) -> CellsMessage:
    """One entry per key, in order; null where there is no such cell."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, GetCellsMessage)
    keys = [(key.row_key, key.column_name, key.ref_key) for key in wanted.keys]
    return _cells(
        await state.reads.run(store.get_cells_page, keys, read_from=wanted.read_from),
        None if wanted.pages else len(keys),
    )


@post(
    "/v1/{datastore:str}/cells/latest",
    tags=["batches"],
    summary="Many latest cells",
    status_code=200,
    opt={"body": GetLatestMessage},
)
async def get_cells_latest(
    state: ReadState, datastore: Name, request: Request[Any, Any, Any]
) -> CellsMessage:
    """One entry per key, in order; null where the row has no cell in this column."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, GetLatestMessage)
    keys = [(key.row_key, key.column_name) for key in wanted.keys]
    return _cells(
        await state.reads.run(store.get_cells_latest_page, keys, read_from=wanted.read_from),
        None if wanted.pages else len(keys),
    )


@post(
    "/v1/{datastore:str}/rows",
    tags=["batches"],
    summary="Many rows",
    status_code=200,
    opt={"body": GetRowsMessage},
)
async def get_rows(
    state: ReadState, datastore: Name, request: Request[Any, Any, Any]
) -> RowsMessage:
    """One row per row key, in order."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, GetRowsMessage)
    read = state.reads.run(
        store.get_rows_page,
        list(wanted.row_keys),
        read_from=wanted.read_from,
        after_column=wanted.after_column,
    )
    page = await read if wanted.pages else _whole(await read)
    return RowsMessage([_row(row) for row in page.rows], page.next_row, page.after_column)


@delete(
    "/v1/{datastore:str}/rows/{row_key:str}",
    tags=["cells"],
    summary="Erase a row",
    status_code=200,
    opt={"query": ()},
)
async def erase_row(state: ReadState, datastore: Name, row_key: RowKey) -> ErasedRowMessage:
    """The bodies of all its cells are taken away for good. It may be repeated; 504
    ``outcome_unknown``: a worker completes the erasure, or repeat it."""
    store, key = known_datastore(state, datastore), UUID(bytes=check_row_key(row_key))
    try:
        erased = await state.reads.run(store.erase_row, key)
    except StorageUnavailable as error:  # of the pool's deadline, too
        raise OutcomeUnknown(
            f"the erasure of row {key} may be under way; erase it again to know: {error}"
        ) from error
    return ErasedRowMessage(key, erased.shard, erased.added_id, erased.cells, erased.kept)


@get(
    "/v1/{datastore:str}/shards",
    tags=["logs"],
    summary="The head of every shard",
    opt={"query": ()},
)
async def get_heads(state: ReadState, datastore: Name) -> HeadsMessage:
    """``heads[n]`` is shard n."""
    store = known_datastore(state, datastore)
    heads = await state.reads.run(store.heads)
    return HeadsMessage(
        store.name, store.shards, [HeadMessage(*heads[shard]) for shard in range(store.shards)]
    )


@get(
    "/v1/{datastore:str}/shards/{shard:int}/cells",
    tags=["logs"],
    summary="A piece of a shard's log",
    opt={"query": ("location", "limit")},
)
async def scan_shard(
    state: ReadState, datastore: Name, shard: Shard, location: From = "0", limit: Limit = 1000
) -> ShardCellsMessage:
    """Cells in added_id order from ``location`` on, and the location to continue from."""
    store = known_datastore(state, datastore)
    return shard_cells_message(
        await state.reads.run(store.get_cells_for_shard, shard, location_from(location), limit)
    )


@post(
    "/v1/{datastore:str}/shards/cells",
    tags=["logs"],
    summary="Pieces of many shards' logs",
    status_code=200,
    opt={"body": ScanShardsMessage},
)
async def scan_shards(
    state: ReadState, datastore: Name, request: Request[Any, Any, Any]
) -> ShardsCellsMessage:
    """One piece per shard asked for, in order. 413 ``answer_too_large``: ask for fewer shards at
    once."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, ScanShardsMessage)
    locations: dict[int, Location] = {
        item.shard: location_from(item.location) for item in wanted.locations
    }
    if len(locations) != len(wanted.locations):
        raise InvalidRequest("request asks for the same shard twice")
    pieces = await state.reads.run(
        store.get_cells_for_shards, locations, wanted.limit, bytes_max=SCAN_SHARDS_BYTES_MAX
    )
    return ShardsCellsMessage([shard_cells_message(piece) for piece in pieces.values()])


READ_ROUTES: Final[tuple[HTTPRouteHandler, ...]] = (
    get_cell,
    get_latest,
    get_row,
    get_cells,
    get_cells_latest,
    get_rows,
    erase_row,
    get_heads,
    scan_shard,
    scan_shards,
)
_IN_PAGES: Final = (
    'ask with "pages": true for the first of them (POST /rows, /cells/get, /cells/latest), then for'
    " the others"
)

READ_GUARDS: Final = [strict_query]


def plain_scope(request: Request[Any, Any, Any]) -> Scope:
    """The ASGI scope under Litestar's request."""
    return cast("Scope", request.scope)


async def message_of(request: Request[Any, Any, Any], kind: type[Message]) -> Message:
    """The body of a request. Raises InvalidRequest."""
    scope = plain_scope(request)
    media_type = media_type_of(scope)
    receive = cast("Receive", request.receive)
    return message_from(await read_body(scope, receive, HTTP_BODY_BYTES_MAX), media_type, kind)


def _found(cell: Cell | None) -> CellMessage:
    if cell is None:
        raise NotFound("there is no such cell")
    return cell_message(cell)


def _cells(cells: list[Cell | None], wanted: int | None) -> CellsMessage:
    if wanted not in (None, len(cells)):
        raise AnswerTooLarge(f"{wanted} cells are more than {READ_BYTES_MAX} bytes: {_IN_PAGES}")
    return CellsMessage([cell_message(cell) if cell else None for cell in cells])


def _whole(page: RowsPage) -> RowsPage:
    if page.next_row is not None:
        raise AnswerTooLarge(f"the rows are more than {READ_BYTES_MAX} bytes: {_IN_PAGES}")
    return page


def _row(row: Mapping[str, Cell]) -> RowMessage:
    return RowMessage({column: cell_message(cell) for column, cell in row.items()})
