"""The messages of the HTTP API, as both sides write and read them:
:mod:`cellfeed.store.http.server` and :mod:`cellfeed.store.http.client`.

A field here is a promise to clients in other languages: fields are added, never renamed. ``body``
is a JSON object; as :class:`msgspec.Raw` its bytes pass through without being parsed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec

from cellfeed.store.cells.cell import Cell
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.limits import COLUMN_NAME_BYTES_MAX, REF_KEY_MAX, REF_KEY_MIN

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
NDJSON: Final = "application/x-ndjson"

REQUEST_NUMBER: Final = "cellfeed-request"
"""A header that a client may send: the worker repeats it in the answer, and so the client knows
that the answer is one to its request."""

HISTORY: Final = "cellfeed-history"
"""A header of every answer: the identity of the history that the worker serves
(:mod:`cellfeed.store.histories`). A client sends back the one that it knows; a worker with another
one refuses the request before it does anything."""

REQUEST_NUMBER_BYTES_MAX: Final = 64
"""A longer one is not repeated."""

RowKeyText = Annotated[
    str, msgspec.Meta(description="A UUID as text.", extra_json_schema={"format": "uuid"})
]
ColumnName = Annotated[
    str,
    msgspec.Meta(
        description=f"1 to {COLUMN_NAME_BYTES_MAX} bytes of UTF-8 without control characters."
    ),
]
RefKey = Annotated[
    int,
    msgspec.Meta(
        description=f"A signed 64-bit integer, {REF_KEY_MIN} to {REF_KEY_MAX}.",
        extra_json_schema={"format": "int64"},
    ),
]
Body = Annotated[
    msgspec.Raw,
    msgspec.Meta(description="The JSON object that was put.", extra_json_schema={"type": "object"}),
]
ReadBody = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        description="The JSON object that was put; null in a piece of a log, where it was erased.",
        extra_json_schema={"type": ["object", "null"]},
    ),
]

ReadFromField = Annotated[
    Replica,
    msgspec.Meta(
        description=(
            "Where the read goes first; cells from a minion are `stale`: a later cell may not"
            " have arrived there."
        )
    ),
]

PagesField = Annotated[
    bool,
    msgspec.Meta(
        description=(
            "Whether the caller reads pages: an answer of more bytes than one may have is 413"
            " `answer_too_large` otherwise."
        )
    ),
]


class ErrorMessage(msgspec.Struct):
    """``definite``: nothing was written. ``retriable``: the same request may succeed later."""

    error: str
    message: str
    retriable: bool
    definite: bool


class PutMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One cell to be written."""

    row_key: RowKeyText
    column_name: ColumnName
    ref_key: RefKey
    body: Body


class PutsMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Cells to be written, in this order."""

    cells: list[PutMessage]


class PutResultMessage(msgspec.Struct):
    """``outcome``: stored, exists, buffered, conflict, failed (nothing was written) or unknown (it
    may have been). ``token``: the cell's place, for ``/wait``; null where it has none (yet)."""

    outcome: str
    shard: int | None = None
    added_id: int | None = None
    error: ErrorMessage | None = None
    token: str | None = None


class PutResultsMessage(msgspec.Struct):
    """One result per cell, in the order of the request."""

    results: list[PutResultMessage]


class CellMessage(msgspec.Struct, omit_defaults=True):
    """A stored cell and its place in the log; ``created_at`` is RFC 3339 with microseconds, UTC.
    ``stale``: it came from a minion, a later one may be missing."""

    row_key: UUID
    column_name: str
    ref_key: int
    body: ReadBody
    shard: int
    added_id: int
    created_at: datetime
    stale: bool = False


class ErasedRowMessage(msgspec.Struct):
    """The result of an erasure. ``cells``: bodies taken away now; ``shard``, ``added_id``: where
    the log marks it. ``kept``: unread copies that may still have bodies of the row, each with the
    command that drops it."""

    row_key: UUID
    shard: int
    added_id: int
    cells: int
    kept: list[str] = []


class CellsMessage(msgspec.Struct):
    """One entry per key asked for, in order; null where there is no such cell. A caller that reads
    pages gets those of the first keys; ask for the others next."""

    cells: list[CellMessage | None]


class RowMessage(msgspec.Struct):
    """The latest cell of each column of a row, by column name."""

    cells: dict[str, CellMessage]


class RowsMessage(msgspec.Struct, omit_defaults=True):
    """One row per row key asked for, in order. A caller that reads pages gets the first of them.
    ``next_row``: the number of the row to continue with; of that row only the columns behind
    ``after_column``, when it is there."""

    rows: list[RowMessage]
    next_row: int | None = None
    after_column: str = ""


class CellKey(msgspec.Struct, forbid_unknown_fields=True):
    row_key: RowKeyText
    column_name: ColumnName
    ref_key: RefKey


class LatestKey(msgspec.Struct, forbid_unknown_fields=True):
    row_key: RowKeyText
    column_name: ColumnName


class GetCellsMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Which cells to read."""

    keys: list[CellKey]
    read_from: ReadFromField = Replica.MASTER
    pages: PagesField = False


class GetLatestMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Row keys and columns; the cell of each with the highest ref key is read."""

    keys: list[LatestKey]
    read_from: ReadFromField = Replica.MASTER
    pages: PagesField = False


class GetRowsMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Which rows to read, of the first one the columns behind ``after_column``."""

    row_keys: list[RowKeyText]
    read_from: ReadFromField = Replica.MASTER
    pages: PagesField = False
    after_column: str = ""


def cell_message(cell: Cell) -> CellMessage:
    """A cell as it goes over the wire in JSON."""
    return CellMessage(
        cell.row_key,
        cell.column_name,
        cell.ref_key,
        msgspec.Raw(cell.body_json),
        cell.shard,
        cell.added_id,
        cell.created_at,
        cell.stale,
    )


def cell_of(message: CellMessage) -> Cell:
    """The cell of a message. Its body is canonical JSON already: a worker sends the stored text."""
    return Cell(
        message.row_key,
        message.column_name,
        message.ref_key,
        bytes(message.body),
        message.shard,
        message.added_id,
        message.created_at,
        message.stale,
    )
