"""A server of a cluster, checked in pieces."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pymysql.connections import Connection

from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.contract.piecewise import Piece, piece_of
from cellfeed.store.engines.mysql.checked_log import (
    check_ids,
    check_outside,
    columns_of,
    head_of,
    moment,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.migrations import check_schema
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ShardMoving


class NodeInPieces:
    """:class:`cellfeed.store.engines.contract.piecewise.InPieces` of a node that serves. Its pages
    prove themselves as they are read."""

    def __init__(self, place: str, server: MySqlServer, layout: Layout) -> None:
        self.place = place
        self._server, self._layout = server, layout

    def begin(self, into: Findings) -> list[int]:
        check_schema(self._server, self._layout)
        with self._server.connection() as connection:
            rows = query(connection, f"SELECT shard FROM {self._layout.meta}.shard_counter")
        return sorted(int(shard) for (shard,) in rows)

    def check(self, shard: int, first: int, cells: int, into: Findings) -> Piece:
        try:
            with moment(self._server) as connection:
                return self._check(connection, shard, first, cells, into)
        except ShardMoving:
            return Piece(None, 1)  # it has left meanwhile, and is looked at where it is now

    def _check(
        self, connection: Connection[Any], shard: int, first: int, cells: int, into: Findings
    ) -> Piece:
        head = head_of(connection, self._layout, shard)
        if head is None:
            return Piece(None, 1)
        table = f"{self._layout.database(shard)}.cell"
        lengths = query(
            connection,
            f"SELECT added_id, LENGTH(body) FROM {table} WHERE added_id >= {first} AND added_id <"
            f" {head.next_added_id} ORDER BY added_id LIMIT {cells}",
        )
        ends, piece = piece_of(
            head, first, cells, ((int(added_id), int(size or 0)) for added_id, size in lengths)
        )
        with ThreadPoolExecutor(1) as ahead:
            columns = columns_of(connection, self._layout)
            check_ids(
                self.place,
                connection,
                self._layout,
                shard,
                ends,
                columns,
                into,
                lambda _: None,
                ahead,
            )
        self._check_keys(connection, shard, range(ends.log_start, ends.next_added_id), into)
        if piece.next_id is None:
            check_outside(self.place, connection, self._layout, shard, head, into)
        return piece

    def _check_keys(
        self, connection: Connection[Any], shard: int, ids: range, into: Findings
    ) -> None:
        """Finds cells that a search by their key does not lead to."""
        table = f"{self._layout.database(shard)}.cell"
        hidden = query(
            connection,
            f"SELECT cell.added_id FROM {table} AS cell FORCE INDEX (PRIMARY) LEFT JOIN {table} AS"
            " entry FORCE INDEX (triple) ON entry.row_key = cell.row_key AND entry.column_name ="
            " cell.column_name AND entry.ref_key = cell.ref_key WHERE cell.added_id >="
            f" {ids.start} AND cell.added_id < {ids.stop} AND NOT entry.added_id <=> cell.added_id",
        )
        for (added_id,) in hidden:
            text = f"shard {shard}, added_id {added_id}: the cell is not found by its key"
            into.add("key", self.place, text, shard, range(int(added_id), int(added_id) + 1))
