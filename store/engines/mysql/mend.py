"""Replaces cells on one server of a cluster that a check has found damaged or lost there, and reads
verified copies on another one.

A replacement is written on that server alone, out of the binary log: it makes the node match the
cluster's history. It locks the shard's counter first. So between the look at the row's erasure and
the write, a minion applies no erasure, and a master takes none.
"""

from __future__ import annotations

from collections.abc import Sequence

import pymysql

from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.cells.from_stored import without_body
from cellfeed.store.engines.mysql.cells import INSERT_COLUMNS, parts, row_literal, stored_cell
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.digest import is_fit, raw_rows
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.own_writes import leave_binlog
from cellfeed.store.engines.mysql.statements import BEGIN, query
from cellfeed.store.errors import DataDamaged, StorageUnavailable


class NodeCopies:
    """:class:`cellfeed.store.backups.repair.Source`: cells of another node of the same cluster
    whose checksums fit."""

    def __init__(self, name: str, server: MySqlServer, layout: Layout) -> None:
        self.name = name
        self._server, self._layout = server, layout

    def cells(self, shard: int, ids: Sequence[int]) -> dict[int, StoredCell]:
        return {each: cell for each in ids if (cell := self._cell(shard, each)) is not None}

    def _cell(self, shard: int, added_id: int) -> StoredCell | None:
        try:
            with self._server.connection() as connection:
                row = raw_rows(
                    connection,
                    f"{self._layout.database(shard)}.cell",
                    range(added_id, added_id + 1),
                ).get(added_id)
        except DataDamaged:
            return None  # a page that cannot be read
        return stored_cell(shard, row) if row is not None and is_fit(shard, row) is True else None


class NodeMender:
    """:class:`cellfeed.store.backups.repair.Mender`."""

    def __init__(self, server: MySqlServer, layout: Layout) -> None:
        self._server, self._layout = server, layout

    def mend(self, shard: int, cells: Sequence[StoredCell]) -> None:
        connection = self._server.open_connection()
        try:
            table = f"{self._layout.database(shard)}.cell"
            leave_binlog(self._server, connection)
            query(connection, BEGIN)
            counter = query(
                connection,
                f"SELECT log_start, next_added_id FROM {self._layout.meta}.shard_counter WHERE"
                f" shard = {shard} FOR UPDATE",
            )
            if not counter or not all(
                int(counter[0][0]) <= cell.added_id < int(counter[0][1]) for cell in cells
            ):
                raise StorageUnavailable(
                    f"shard {shard} was trimmed meanwhile, or has left the node"
                )
            keys = ",".join(f"X'{each.hex()}'" for each in {cell.row_key for cell in cells})
            rows = query(
                connection,
                f"SELECT row_key FROM {table} WHERE row_key IN ({keys}) AND column_name ="
                f" '{ERASED_COLUMN}'",
            )
            erased = {bytes(row_key) for (row_key,) in rows} | {
                cell.row_key for cell in cells if cell.column_name == ERASED_COLUMN
            }
            query(
                connection,
                f"DELETE FROM {table} WHERE added_id IN"
                f" ({','.join(str(cell.added_id) for cell in cells)})",
            )
            for part in parts([row_literal(without_body(cell, erased)) for cell in cells]):
                query(connection, f"INSERT INTO {table} {INSERT_COLUMNS} VALUES {','.join(part)}")
            query(connection, "COMMIT")
        except (pymysql.err.MySQLError, OSError) as error:
            raise failed(self._server, error, "nothing replaced") from error
        finally:
            connection.close()
