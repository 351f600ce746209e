"""Whether an answer is one to the question that was asked.

A connection that two processes read from, or a proxy that mixes its peers up, delivers answers that
are whole, well-formed, and somebody else's. Each of these functions compares the answer with the
question, and raises WrongAnswer when they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, NoReturn

from cellfeed.store.api import Location, ShardCells
from cellfeed.store.cells.cell import Cell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.errors import WrongAnswer
from cellfeed.store.http.index_messages import IndexPageMessage, index_page_of
from cellfeed.store.http.log_messages import (
    HeadsMessage,
    ShardCellsMessage,
    ShardsCellsMessage,
    shard_cells_of,
)
from cellfeed.store.http.messages import CellMessage, CellsMessage, RowMessage, RowsMessage, cell_of
from cellfeed.store.indexes.request import IndexPage


class Asked(NamedTuple):
    """A cell that was asked for; ``ref_key`` is None where the latest one was."""

    row_key: bytes
    column_name: str
    ref_key: int | None


def cell_asked(message: CellMessage, asked: Asked) -> Cell:
    """The cell, when it is that one."""
    same_row = message.row_key.bytes == asked.row_key
    if (
        not same_row
        or message.column_name != asked.column_name
        or asked.ref_key not in (None, message.ref_key)
    ):
        wanted = (
            f"({_text(asked.row_key)}, {asked.column_name!a},"
            f" {'latest' if asked.ref_key is None else asked.ref_key})"
        )
        _wrong(wanted, f"cell ({message.row_key}, {message.column_name!a}, {message.ref_key})")
    return cell_of(message)


def cells_asked(
    message: CellsMessage, asked: Sequence[Asked], *, in_pages: bool = False
) -> list[Cell | None]:
    """The cells, when they are those, in that order; ``in_pages``: the first of them, at least
    one."""
    if not (in_pages and 0 < len(message.cells) < len(asked)):
        _same_count("cells", len(asked), len(message.cells))
    return [
        cell_asked(cell, each) if cell else None
        for cell, each in zip(message.cells, asked, strict=False)
    ]


def row_asked(message: RowMessage, row_key: bytes) -> dict[str, Cell]:
    """The row, when it is that one."""
    return {
        column: cell_asked(cell, Asked(row_key, column, None))
        for column, cell in message.cells.items()
    }


def rows_asked(
    message: RowsMessage, row_keys: Sequence[bytes], *, in_pages: bool = False
) -> list[dict[str, Cell]]:
    """The rows, when they are those, in that order; ``in_pages``: the first of them, up to the row
    to continue with."""
    goes_on = (
        in_pages
        and message.next_row is not None
        and len(message.rows) - bool(message.after_column) == message.next_row < len(row_keys)
    )
    if not (goes_on and (message.next_row or message.after_column)):
        _same_count("rows", len(row_keys), len(message.rows))
    return [row_asked(row, row_key) for row, row_key in zip(message.rows, row_keys, strict=False)]


def piece_asked(
    message: ShardCellsMessage, shard: int, location: Location, limit: int
) -> ShardCells:
    """The piece of a log, when it is of that shard, begins at or behind the location, and
    ascends."""
    start = location if isinstance(location, int) else 0
    ids = [start - 1, *(cell.added_id for cell in message.cells), message.next_location]
    if message.shard != shard or any(cell.shard != shard for cell in message.cells):
        _wrong(f"shard {shard}", f"cells of shard {message.shard}")
    if len(message.cells) > limit or any(after <= before for before, after in pairwise(ids)):
        _wrong(
            f"at most {limit} cells of shard {shard} from {start} on",
            f"{len(message.cells)} of them, at {min(ids[1:])} to {max(ids[1:])}",
        )
    return shard_cells_of(message)


def pieces_asked(
    message: ShardsCellsMessage, locations: Mapping[int, Location], limit: int
) -> dict[int, ShardCells]:
    """The pieces of logs, when they are of those shards."""
    if sorted(piece.shard for piece in message.shards) != sorted(locations):
        _wrong(
            f"shards {sorted(locations)}",
            f"shards {sorted(piece.shard for piece in message.shards)}",
        )
    return {
        piece.shard: piece_asked(piece, piece.shard, locations[piece.shard], limit)
        for piece in message.shards
    }


def heads_asked(message: HeadsMessage, datastore: str, shards: int | None) -> HeadsMessage:
    """The heads, when they are of that datastore, with as many shards as it had before."""
    if (
        message.datastore != datastore
        or message.shards != len(message.heads)
        or shards not in (None, message.shards)
    ):
        _wrong(
            f"datastore {datastore} with {shards or 'its'} shards",
            f"datastore {message.datastore!a} with {message.shards}",
        )
    return message


def index_page_asked(message: IndexPageMessage) -> IndexPage:
    """The page, when the cells of each row are the row's."""
    for row in message.rows:
        row_asked(RowMessage(row.cells), row.row_key.bytes)
    return index_page_of(message)


def _same_count(what: str, asked: int, answered: int) -> None:
    if asked != answered:
        _wrong(f"{asked} {what}", f"{answered} {what}")


def _wrong(asked: str, answered: str) -> NoReturn:
    raise WrongAnswer(
        f"the worker was asked for {asked}, and the answer is for {answered}; ask again: the"
        " connection is not used any more"
    )


def _text(row_key: bytes) -> str:
    return row_key_text(row_key).decode()
