"""The pages of queries: SQL, an index, and the form that puts a cell."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from litestar import get, post
from litestar.enums import RequestEncodingType
from litestar.params import Body
from litestar.response import Template

from cellfeed.console.door import Visitor
from cellfeed.console.frame import AnyRequest, ConsoleState, page
from cellfeed.console.query.index_form import FILTERS, ask_index, index_form
from cellfeed.console.query.put_form import PutForm, checked_put
from cellfeed.console.query.sandbox import ROWS_MAX, TIME_S
from cellfeed.console.query.sql import run_sql
from cellfeed.store.cells.canonical_json import parse
from cellfeed.store.engines.contract.index_values import OPERATORS
from cellfeed.store.errors import CellfeedError, InvalidRequest
from cellfeed.store.indexes.catalog import Catalog
from cellfeed.store.security.callers import Caller

PUT_FORM_BYTES_MAX: Final = 4 << 20
"""A body, percent-encoded."""

SQL_FORM_BYTES_MAX: Final = 64 << 10

EXAMPLE: Final = (
    "SELECT column_name, count(*) AS cells, max(created_at) AS newest\nFROM cells GROUP BY ALL"
    " ORDER BY cells DESC"
)
_Put = Annotated[PutForm, Body(media_type=RequestEncodingType.URL_ENCODED)]


@get("/query")
async def sql_page(state: ConsoleState, caller: Visitor) -> Template:
    """The form for SQL."""
    return await asyncio.to_thread(_sql, state, caller, "", EXAMPLE)


@post("/query", request_max_body_size=SQL_FORM_BYTES_MAX, status_code=200)
async def sql(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Template:
    """Runs SQL, and shows its rows."""
    # A form is sent, no address: SQL has no place in a browser's history, nor in a proxy's log.
    form = await request.form()
    text, table = str(form.get("sql", "")), str(form.get("table", ""))
    return await asyncio.to_thread(_run, request, state, caller, table, text)


def _run(
    request: AnyRequest, state: ConsoleState, caller: Caller, table: str, text: str
) -> Template:
    caller.check_all("read")
    try:
        files = state.tables.files(table).paths
        with state.door.audited(request, "query", f"{table}: {text}"):
            found = run_sql(text, files)
    except CellfeedError as error:
        return _sql(state, caller, table, text, problem=str(error), status=error.http_status)
    return _sql(state, caller, table, text, answer=found)


def _sql(state: ConsoleState, caller: Caller, table: str, text: str, **context: Any) -> Template:
    return page(
        state,
        caller,
        "query",
        "Query",
        tables=state.tables.names(),
        table=table,
        sql=text,
        rows_max=ROWS_MAX,
        time_s=TIME_S,
        may=caller.may_all("read"),
        **{"answer": None, "problem": "", **context},
    )


@get("/query/index", sync_to_thread=True)
def index_page(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Template:
    """The builder of index queries, with the rows of the one that it says."""
    caller.check_some()
    datastore = state.instance.datastore
    query = {str(name): str(value) for name, value in request.query_params.items()}
    form = index_form(query)
    records = Catalog(datastore.state, datastore.name).all()
    problem, found, definition, status = "", None, None, None
    try:
        if form.table:
            definition = datastore.indexes.current(form.table).definition
        if form.is_asked:
            found = ask_index(datastore, caller, form)
    except CellfeedError as error:
        problem, status = str(error), error.http_status
    following = ""
    if found is not None and found.cursor is not None:
        following = urlencode({**query, "cursor": found.cursor})
    return page(
        state,
        caller,
        "index",
        "Query an index",
        status=status,
        indexes=[each.name for each in records],
        definition=definition,
        form=form,
        filters=FILTERS,
        operators=OPERATORS,
        found=found,
        following=following,
        problem=problem,
    )


@get("/put")
async def put_page(state: ConsoleState, caller: Visitor) -> Template:
    """The form that puts a cell."""
    return await asyncio.to_thread(_put, state, caller, PutForm())


@post(
    "/put/preview", sync_to_thread=True, request_max_body_size=PUT_FORM_BYTES_MAX, status_code=200
)
def preview(state: ConsoleState, caller: Visitor, data: _Put) -> Template:
    """Shows the cell as it would be stored; nothing is written."""
    try:
        checked = checked_put(state.instance.datastore, caller, data)
    except CellfeedError as error:
        return _put(state, caller, data, problem=str(error), status=error.http_status)
    return _put(state, caller, data, checked=checked)


@post("/put", request_max_body_size=PUT_FORM_BYTES_MAX, status_code=200)
async def put(request: AnyRequest, state: ConsoleState, caller: Visitor, data: _Put) -> Template:
    """Puts the cell that the preview has shown."""
    return await asyncio.to_thread(_put_checked, request, state, caller, data)


def _put_checked(
    request: AnyRequest, state: ConsoleState, caller: Caller, data: PutForm
) -> Template:
    datastore = state.instance.datastore
    try:
        if not data.row_key.strip():
            raise InvalidRequest("look at the preview first: it gives a new row its key")
        checked = checked_put(datastore, caller, data)
        cell = f"{checked.row_key}/{checked.column}/{checked.ref_key}"
        with state.door.audited(request, "put", cell):
            result = datastore.put_cell(
                checked.row_key, checked.column, checked.ref_key, parse(checked.body_json)
            )
    except CellfeedError as error:
        return _put(state, caller, data, problem=str(error), status=error.http_status)
    return _put(state, caller, data, result=result)


def _put(state: ConsoleState, caller: Caller, form: PutForm, **context: Any) -> Template:
    return page(
        state,
        caller,
        "put",
        "Put a cell",
        form=form,
        **{"checked": None, "result": None, "problem": "", **context},
    )


QUERY_PAGES: Final = [sql_page, sql, index_page, put_page, preview, put]
