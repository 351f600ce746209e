"""Digests of pieces of a table of cells, made by the server: they compare two nodes without reading
every cell through a client.

The digest covers the fields of a cell, not its checksum: a cell of an earlier version has none, and
gets one on its way to another cluster. The checksums are summed beside it. Where the sums of two
nodes differ, their rows are read and compared with their checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.cells import CELL, MICROSECONDS, stored_cell
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import DataDamaged

_CONTENT: Final = (
    f"CONCAT_WS(',', added_id, ref_key, {MICROSECONDS.format('created_at')}, LENGTH(column_name),"
    " LENGTH(body), CONCAT(row_key, column_name, body))"
)
"""All of a cell, in one way only: a length stands before each field without a fixed one."""

_DIGEST: Final = f"SUM(CAST(CONV(LEFT(MD5({_CONTENT}), 15), 16, 10) AS UNSIGNED))"
"""A sum of 60 bits of each cell's MD5: it does not depend on the order in which the server
reads."""


class RangeDigest(NamedTuple):
    """Of the cells in a range of ids: how many, of their content, of their checksums, and how many
    have none."""

    cells: int
    content: int
    sums: int
    without_sum: int


def range_digest(connection: Connection[Any], table: str, ids: range) -> RangeDigest:
    """One answer of four numbers. Raises pymysql's errors."""
    where = f"added_id >= {ids.start} AND added_id < {ids.stop}"
    [row] = query(
        connection,
        f"SELECT COUNT(*), COALESCE({_DIGEST}, 0), COALESCE(SUM(crc), 0), COUNT(*) - COUNT(crc)"
        f" FROM {table} WHERE {where}",
    )
    return RangeDigest(*map(int, row))


def raw_rows(connection: Connection[Any], table: str, ids: range) -> dict[int, Sequence[Any]]:
    """The rows of a range by added_id, as ``CELL`` names their values: unchecked."""
    rows = query(
        connection,
        f"SELECT {CELL} FROM {table} WHERE added_id >= {ids.start} AND added_id < {ids.stop}",
    )
    return {int(row[0]): row for row in rows}


def is_fit(shard: int, row: Sequence[Any]) -> bool | None:
    """Whether a row fits its checksum; None where it has none."""
    try:
        stored_cell(shard, row)
    except DataDamaged:
        return False
    return None if row[6] is None else True
