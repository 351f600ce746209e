"""The read routes, and the one that erases: thin Litestar handlers over the datastore's own calls,
which block and therefore run in the read pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler

from cellfeed.store.cells.cell import Cell, check_row_key
from cellfeed.store.cells.rows_page import RowsPage
from cellfeed.store.errors import AnswerTooLarge, NotFound, OutcomeUnknown, StorageUnavailable
from cellfeed.store.http.messages import (
    CellMessage,
    CellsMessage,
    ErasedRowMessage,
    GetCellsMessage,
    GetLatestMessage,
    GetRowsMessage,
    RowMessage,
    RowsMessage,
    cell_message,
)
from cellfeed.store.http.server.audited import address_of, number_of
from cellfeed.store.http.server.callers import caller_of
from cellfeed.store.http.server.handlers import (
    Column,
    Name,
    ReadFromParameter,
    ReadState,
    Ref,
    RowKey,
    known_datastore,
    message_of,
    plain_scope,
)
from cellfeed.store.http.server.log_reads import get_heads, scan_shard, scan_shards
from cellfeed.store.http.server.query import strict_query
from cellfeed.store.http.server.route_rights import (
    erase,
    has_right,
    in_body,
    read_all,
    read_column,
)
from cellfeed.store.limits import READ_BYTES_MAX


@get(
    "/v1/{datastore:str}/cell",
    tags=["cells"],
    summary="One cell by its key",
    opt={"right": read_column, "query": ("row_key", "column_name", "ref_key", "read_from")},
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
    opt={"right": read_column, "query": ("row_key", "column_name", "read_from")},
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
    opt={"right": read_all, "query": ("row_key", "read_from")},
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
    opt={"right": in_body, "body": GetCellsMessage},
)
async def get_cells(
    state: ReadState, datastore: Name, request: Request[Any, Any, Any]
) -> CellsMessage:
    """One entry per key, in order; null where there is no such cell."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, GetCellsMessage)
    caller_of(plain_scope(request)).check_columns("read", {key.column_name for key in wanted.keys})
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
    opt={"right": in_body, "body": GetLatestMessage},
)
async def get_cells_latest(
    state: ReadState, datastore: Name, request: Request[Any, Any, Any]
) -> CellsMessage:
    """One entry per key, in order; null where the row has no cell in this column."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, GetLatestMessage)
    caller_of(plain_scope(request)).check_columns("read", {key.column_name for key in wanted.keys})
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
    opt={"right": read_all, "body": GetRowsMessage},
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
    opt={"right": erase, "query": ()},
)
async def erase_row(
    state: ReadState, datastore: Name, row_key: RowKey, request: Request[Any, Any, Any]
) -> ErasedRowMessage:
    """The bodies of all its cells are taken away for good. It may be repeated; 504
    ``outcome_unknown``: a worker completes the erasure, or repeat it."""
    store, key = known_datastore(state, datastore), UUID(bytes=check_row_key(row_key))
    if state.audit is not None:
        scope = plain_scope(request)
        caller, about = (
            caller_of(scope),
            {"request": number_of(scope), "address": address_of(scope)},
        )
        state.audit.before(caller.principal, "erase", str(key), how=caller.how, **about)
    try:
        erased = await state.reads.run(store.erase_row, key)
    except StorageUnavailable as error:  # of the pool's deadline, too
        raise OutcomeUnknown(
            f"the erasure of row {key} may be under way; erase it again to know: {error}"
        ) from error
    return ErasedRowMessage(key, erased.shard, erased.added_id, erased.cells, erased.kept)


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

READ_GUARDS: Final = [strict_query, has_right]


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
