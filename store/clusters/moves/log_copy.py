"""The log of a shard, from the source's tables into the target's: raw stored bodies, ids and times as they are.

The source's server writes the rows as SQL literals (numbers, and X'..' of bytes), thousands in one value, and they go to the target as they came: nothing is
taken apart here, so the servers' own speed is what a copy has. While the target runs one step the next one is read. A step is one transaction, with the place
where the copy ends: cut off anywhere, it goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from store.clusters.moves.shard_side import ShardSide
from store.engines.mysql_connections import MySqlServer, query
from store.errors import Trimmed

STEP_CELLS: Final = 10_000
"""Cells in one step: a transaction of a tenth of a second."""

PART_CELLS: Final = 2_000
"""Cells in one value, and one INSERT."""

PART_BYTES_MAX: Final = 12 << 20
"""Text of one INSERT, beyond which fewer cells are taken: well below what a server takes (``mysql_checks.PACKET_BYTES_MIN``)."""

_ROW_BYTES: Final = 400
"""More than a row's text without its body: the longest column name is 128 bytes."""

_ROW: Final = "CONCAT('(', added_id, ',X''', HEX(row_key), ''',X''', HEX(column_name), ''',', ref_key, ',X''', HEX(body), ''',''', created_at, ''')')"


class _Step(NamedTuple):
    """Rows from ``first`` up to ``after``, as the values of INSERTs."""

    first: int
    after: int
    rows: list[bytes]


def copy_log(source: ShardSide, table: str, target: ShardSide, first: int, end: int, on_cells: Callable[[int], None] = lambda _: None) -> None:
    """Copies the cells from ``first`` up to ``end`` of a table of the source. ``on_cells`` is told how many ids each step had.

    Raises Trimmed when the cells at ``first`` are gone, StorageUnavailable.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="copy-log") as reader:
        reading = reader.submit(_read, source.server, table, source.log_start_sql, first, end)
        while first < end:
            step = reading.result()
            first = step.after
            if first < end:
                reading = reader.submit(_read, source.server, table, source.log_start_sql, first, end)
            target.append(step.first, step.after, step.rows)
            on_cells(step.after - step.first)


def _read(server: MySqlServer, table: str, log_start: str, first: int, end: int) -> _Step:
    rows: list[bytes] = []
    after, part_cells = first, PART_CELLS
    with server.connection() as connection:
        while after < min(end, first + STEP_CELLS):
            to = min(end, first + STEP_CELLS, after + part_cells)
            cells = f"FROM {table} WHERE added_id >= {after} AND added_id < {to}"
            wanted = f"COUNT(*), COALESCE(SUM(LENGTH(body)), 0), CAST(GROUP_CONCAT({_ROW} SEPARATOR ',') AS BINARY)"
            [(count, body_bytes, text)] = query(connection, f"SELECT {wanted} {cells}")
            # Fewer than ids: those of a restored log that were left out, or the front was trimmed. The start is read after the cells, and only rises.
            if int(count) != to - after and any(int(start) > after for (start,) in query(connection, log_start)):
                raise Trimmed(f"{server}: {table} was trimmed behind {after}")
            if to - after > 1 and 2 * int(body_bytes) + _ROW_BYTES * (to - after) > PART_BYTES_MAX:
                part_cells = (to - after) // 2  # the text may have been cut at the server's limit
                continue
            if text is not None:
                rows.append(text)
            after = to
    return _Step(first, after, rows)
