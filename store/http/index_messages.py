"""The messages of queries of an index, as both sides write and read them."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec

from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.http.messages import CellMessage, ReadFromField, cell_message, cell_of
from cellfeed.store.indexes.request import WAIT_S, IndexPage, IndexRow


class IndexQueryMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A query of an index. ``shard_value``: a value of the shard field, or a list of them.
    ``where``: ``[field, operator, value]`` each, with the operators ``= != < <= > >= in``.
    ``columns``: names, or ``*``. ``wait_for``: ``[shard, added_id]`` of puts that the index must
    have come past."""

    shard_value: Any
    where: list[tuple[str, str, Any]] = []
    order_by: str | None = None
    descending: bool = False
    limit: int = 100
    cursor: str | None = None
    fields: list[str] | None = None
    columns: list[str] | Literal["*"] | None = None
    mode: Literal["fresh", "fast"] = "fresh"
    read_from: ReadFromField = Replica.MASTER
    wait_for: list[tuple[int, int]] = []
    wait_s: float = WAIT_S


class IndexRowMessage(msgspec.Struct):
    """A row found: the fields asked for, null where missing, and the latest cells of the columns
    asked for."""

    row_key: UUID
    fields: dict[str, str | int | float | bool | None]
    cells: dict[str, CellMessage]


class IndexPageMessage(msgspec.Struct):
    """``cursor`` is behind the rows; null at the end. ``stale``: cells came from a minion."""

    rows: list[IndexRowMessage]
    cursor: str | None
    version: int
    stale: bool


def index_page_message(page: IndexPage) -> IndexPageMessage:
    """An answer of an index as it goes over the wire."""
    rows = [
        IndexRowMessage(
            row.row_key, row.fields, {name: cell_message(cell) for name, cell in row.cells.items()}
        )
        for row in page.rows
    ]
    return IndexPageMessage(rows, page.cursor, page.version, page.stale)


def index_page_of(message: IndexPageMessage) -> IndexPage:
    """The answer of a message."""
    rows = [
        IndexRow(row.row_key, row.fields, {name: cell_of(cell) for name, cell in row.cells.items()})
        for row in message.rows
    ]
    return IndexPage(rows, message.cursor, message.version, message.stale)
