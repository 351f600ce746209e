"""Reads of cells by key: by triple, the latest of a column, a row. Answers have a bounded
size (E26)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.cells.cell import StoredCell, Triple
from cellfeed.store.cells.sharding import shard_of, shards_of
from cellfeed.store.engines.contract.read_bounds import Page
from cellfeed.store.engines.contract.values import (
    LocatedCell,
)
from cellfeed.store.engines.mysql.cells import FOUND_KEY, found_by_key, stored_cell
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.put_lookups import ENTRY_TRIPLE, entry_is_of
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.limits import READ_KEYS_MAX

_LARGE_BODY_BYTES: Final = 4 << 10
"""Stored bodies up to which a read of many keys fetches all at once: 20 MB with ``READ_KEYS_MAX``
of them. Larger ones are fetched one by one."""

_COLUMNS_STEP: Final = 16
"""Columns of a row that are fetched at once: as many bodies at their limit as an answer holds. Rows
have fewer as a rule."""


class MySqlKeyReads:
    """Reads on one server. ``shard_database`` gives a shard's database, a checked name."""

    def __init__(
        self, server: MySqlServer, shard_database: Callable[[int], str], shards: int
    ) -> None:
        self._server, self._database, self._shards = server, shard_database, shards

    def get(self, triples: Sequence[Triple]) -> list[LocatedCell | None]:
        found: dict[Triple, LocatedCell | None] = {}
        with self._server.connection() as connection:
            for shard, wanted in self._by_shard(
                [(triple.row_key, triple) for triple in triples]
            ).items():
                # Large bodies stay where they are until their turn has come.
                columns = (
                    f"{FOUND_KEY}, IF(LENGTH(cell.body) > {_LARGE_BODY_BYTES}, NULL, cell.body),"
                    f" cell.crc, {ENTRY_TRIPLE}, LENGTH(cell.body)"
                )
                for row in self._rows(
                    connection,
                    shard,
                    columns,
                    entry_is_of(wanted),
                ):
                    found[Triple(row[7], row[8].decode(), int(row[9]))] = (
                        None
                        if int(row[10] or 0) > _LARGE_BODY_BYTES
                        else LocatedCell(shard, stored_cell(shard, row))
                    )
            results: list[LocatedCell | None] = []
            page = Page()
            for triple in triples:
                if triple in found and found[triple] is None:
                    shard = shard_of(triple.row_key, self._shards)
                    cells = self._select(connection, shard, entry_is_of([triple]))
                    found[triple] = (
                        LocatedCell(shard, cells[0]) if cells else None
                    )  # it was trimmed meanwhile
                results.append(there := found.get(triple))
                page.take([there.cell.body] if there else ())
                if page.is_full:
                    break
        return results

    def latest(self, keys: Sequence[tuple[bytes, str]]) -> list[LocatedCell | None]:
        with self._server.connection() as connection:
            results: list[LocatedCell | None] = []
            page = Page()
            for row_key, column_name in keys:
                shard = shard_of(row_key, self._shards)
                condition = (
                    f"entry.row_key = X'{row_key.hex()}' AND entry.column_name ="
                    f" X'{column_name.encode().hex()}' ORDER BY entry.ref_key DESC LIMIT 1"
                )
                cells = self._select(connection, shard, condition)
                results.append(LocatedCell(shard, cells[0]) if cells else None)
                page.take([cell.body for cell in cells])
                if page.is_full:
                    break
        return results

    def row(self, row_keys: Sequence[bytes], after_column: str = "") -> list[list[LocatedCell]]:
        rows: list[list[LocatedCell]] = []
        page = Page()
        with self._server.connection() as connection:
            for row_key in row_keys:
                rows.append([])
                after = "" if len(rows) > 1 else after_column
                while True:
                    step = self._row_step(connection, row_key, after)
                    rows[-1] += page.take_up_to_full_of(step)
                    if page.is_full:
                        return rows
                    if len(step) < _COLUMNS_STEP:
                        break
                    after = step[-1].cell.column_name
        return rows

    def _row_step(
        self, connection: Connection[Any], row_key: bytes, after_column: str
    ) -> list[LocatedCell]:
        """The latest cells of the next ``_COLUMNS_STEP`` columns of a row."""
        shard = shard_of(row_key, self._shards)
        key = f"entry.row_key = X'{row_key.hex()}'" + (
            f" AND entry.column_name > X'{after_column.encode().hex()}'" if after_column else ""
        )
        latest = (
            f"SELECT column_name, MAX(ref_key) FROM {self._database(shard)}.cell AS entry WHERE"
            f" {key} GROUP BY column_name"
        )
        condition = (
            f"{key} AND (entry.column_name, entry.ref_key) IN ({latest}) ORDER BY entry.column_name"
            f" LIMIT {_COLUMNS_STEP}"
        )
        return [LocatedCell(shard, cell) for cell in self._select(connection, shard, condition)]

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        condition = (
            f"entry.row_key = X'{row_key.hex()}' AND entry.added_id >= {after + 1:d} ORDER BY"
            f" entry.added_id LIMIT {limit:d}"
        )
        with self._server.connection() as connection:
            return self._select(connection, shard_of(row_key, self._shards), condition)

    def _by_shard(self, keyed: Sequence[tuple[bytes, Triple]]) -> dict[int, list[Triple]]:
        grouped: dict[int, list[Triple]] = {}
        for shard, (_, triple) in zip(
            shards_of([row_key for row_key, _ in keyed], self._shards), keyed, strict=True
        ):
            grouped.setdefault(shard, []).append(triple)
        return grouped

    def _rows(
        self, connection: Connection[Any], shard: int, columns: str, condition: str
    ) -> Sequence[Any]:
        found = found_by_key(f"{self._database(shard)}.cell")
        return query(connection, f"SELECT {columns} FROM {found} WHERE {condition}")

    def _select(self, connection: Connection[Any], shard: int, condition: str) -> list[StoredCell]:
        columns = f"{FOUND_KEY}, cell.body, cell.crc"
        return [
            stored_cell(shard, row) for row in self._rows(connection, shard, columns, condition)
        ]
