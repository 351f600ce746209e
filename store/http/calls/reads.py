"""Reads by key: of one cell, and of many in pages where one answer would be too large."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from cellfeed.store.api import ReadFrom
from cellfeed.store.cells.cell import (
    Cell,
)
from cellfeed.store.cells.rows_page import with_page
from cellfeed.store.errors import (
    AnswerTooLarge,
    NotFound,
)
from cellfeed.store.http.calls.answers import (
    Asked,
    cell_asked,
    cells_asked,
    rows_asked,
)
from cellfeed.store.http.calls.fields import key_fields, key_text, replica_fields
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.messages import (
    CellMessage,
    CellsMessage,
    RowsMessage,
)


def read_cell(
    requests: Requests, route: str, asked: Asked, read_from: ReadFrom
) -> Steps[Cell | None]:
    try:
        return (
            yield from requests.get(
                f"{route}?{urlencode({**key_fields(asked), **replica_fields(read_from)})}",
                CellMessage,
                lambda message: cell_asked(message, asked),
            )
        )
    except NotFound as error:
        if (
            error.code == NotFound.code
        ):  # the datastore and the path were found; only the cell is not there
            return None
        raise


def read_cells(
    requests: Requests, route: str, asked: Sequence[Asked], read_from: ReadFrom
) -> Steps[list[Cell | None]]:
    keys = list(map(key_fields, asked))
    try:
        return (
            yield from requests.post(
                route,
                {"keys": keys, **replica_fields(read_from)},
                CellsMessage,
                lambda message: cells_asked(message, asked),
            )
        )
    except AnswerTooLarge:
        # asked for pages only now: a worker of an earlier version knows none, and answers with any
        # number of bytes
        cells: list[Cell | None] = []
        while len(cells) < len(asked):
            wanted = {"keys": keys[len(cells) :], "pages": True, **replica_fields(read_from)}
            rest = asked[len(cells) :]
            cells += yield from requests.post(
                route,
                wanted,
                CellsMessage,
                lambda message, rest=rest: cells_asked(message, rest, in_pages=True),  # type: ignore[misc]
            )
        return cells


def read_rows_in_pages(
    requests: Requests, keys: Sequence[bytes], read_from: ReadFrom
) -> Steps[list[dict[str, Cell]]]:
    rows: list[dict[str, Cell]] = []
    first, after = 0, ""
    while True:
        asked = keys[first:]
        wanted = {
            "row_keys": list(map(key_text, asked)),
            "pages": True,
            "after_column": after,
            **replica_fields(read_from),
        }
        page, found = yield from requests.post(
            "/rows",
            wanted,
            RowsMessage,
            lambda message, asked=asked: (message, rows_asked(message, asked, in_pages=True)),  # type: ignore[misc]
        )
        rows = with_page(rows, found, first)
        if page.next_row is None:
            return rows
        first, after = first + page.next_row, page.after_column
