"""The tables of a column beside the table of all cells: a digest of each shard, by DuckDB.

Each cell of the column is in the typed table or parked, and once; the newest version of each row,
of those that are typed, is in its latest table. Bodies are made of the typed columns again, and
compared with those of the table of all cells. Erased rows are left out on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from cellfeed.consumers.lake.contract import LakeTable, State, TableKind
from cellfeed.consumers.lake.open_table import LakeTables, Place
from cellfeed.consumers.lake.typed.column_kinds import (
    latest_kind,
    parked_kind,
    typed_kind,
)
from cellfeed.consumers.lake.typed.restored_bodies import RestoredBodies, plain
from cellfeed.consumers.lake.typed.table_views import add_view
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON
from cellfeed.store.cells.digest import ShardDigest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_FETCHED_ROWS: Final = 5_000

_CELLS: Final = f"""
    SELECT added_id, CAST(row_key AS VARCHAR) AS row_key, ref_key, body FROM cells
    WHERE column_name = $column AND shard = $shard AND added_id < $before
      AND body <> '{ERASED_JSON.decode()}'
      AND row_key NOT IN (SELECT row_key FROM cells WHERE column_name = '{ERASED_COLUMN}')
"""  # noqa: S608
_NOT_ERASED: Final = f"""
    shard = $shard AND CAST(row_key AS VARCHAR) NOT IN
    (SELECT row_key FROM cells WHERE column_name = '{ERASED_COLUMN}')
"""  # noqa: S608


_Bodied = tuple[dict[str, Any], bytes]


class ShardReport(NamedTuple):
    """One table's shard: its digest and that of the table of all cells."""

    table: str
    shard: int
    cells: int
    digest: str
    wanted: str

    @property
    def equal(self) -> bool:
        return self.digest == self.wanted


class ColumnDigests:
    """The tables of one column, as they stand now. ``versions``: of its schema as text."""

    def __init__(self, place: Place, column: str, versions: Sequence[str]) -> None:
        """Raises Unavailable, and NotFound when the lake has no table of all cells."""
        self._column = column
        self._restored = RestoredBodies(versions)
        tables = LakeTables(place)
        # In this order: a cell that is mended meanwhile is in one of both at least.
        self._parked = _looked(tables, parked_kind(column))
        self._typed = _looked(tables, typed_kind(column, ()))
        self._latest = _looked(tables, latest_kind(column, ()))

    def add_views(self, connection: DuckDBPyConnection) -> None:
        """Views over the states that were looked at, beside a newer ``cells``."""
        for found in filter(None, (self._parked, self._typed, self._latest)):
            add_view(connection, *found)

    def shards(self, connection: DuckDBPyConnection) -> Iterator[ShardReport]:
        """Compares shard by shard. Raises ValueError for an added_id that is there twice."""
        if self._typed is not None:
            yield from self._compared(connection, self._typed, "", parked=True)
        if self._latest is not None:
            newest = " QUALIFY row_number() OVER (PARTITION BY row_key ORDER BY ref_key DESC) = 1"
            yield from self._compared(connection, self._latest, newest, parked=False)

    def _compared(
        self,
        connection: DuckDBPyConnection,
        found: tuple[LakeTable, State],
        newest: str,
        *,
        parked: bool,
    ) -> Iterator[ShardReport]:
        table, state = found
        name = table.kind.name
        for shard, position in sorted(state.positions.items()):
            values = {"column": self._column, "shard": shard, "before": position.next_id}
            left_out = "" if parked or self._parked is None else self._not_parked
            sql = f"{_CELLS}{left_out}{newest} ORDER BY added_id"
            wanted, own = ShardDigest(), ShardDigest()
            for row in _rows(connection, sql, values):
                self._add(wanted, row, plain(row["body"].encode()))
            sql = f'SELECT * FROM "{name}" WHERE {_NOT_ERASED} ORDER BY added_id'  # noqa: S608
            typed = (
                (row, self._restored.body(row["schema_version"], row))
                for row in _rows(connection, sql, {"shard": shard})
            )
            merged = self._parked_bodies(connection, shard, position.next_id) if parked else {}
            for row, body in _with(merged, typed):
                self._add(own, row, body)
            yield ShardReport(name, shard, own.cells, own.hexdigest(), wanted.hexdigest())

    @property
    def _not_parked(self) -> str:
        assert self._parked is not None  # noqa: S101 (for the type checker)
        name = self._parked[0].kind.name
        return f' AND added_id NOT IN (SELECT added_id FROM "{name}" WHERE shard = $shard)'  # noqa: S608

    def _add(self, digest: ShardDigest, row: dict[str, Any], body: bytes) -> None:
        key = UUID(str(row["row_key"])).bytes
        digest.add(row["added_id"], key, self._column, row["ref_key"], body)

    def _parked_bodies(
        self, connection: DuckDBPyConnection, shard: int, before: int
    ) -> dict[int, _Bodied]:
        if self._parked is None:
            return {}
        name = self._parked[0].kind.name
        sql = f'SELECT * FROM "{name}" WHERE {_NOT_ERASED} AND added_id < $before'  # noqa: S608
        return {
            row["added_id"]: (row, plain(row["body"].encode()))
            for row in _rows(connection, sql, {"shard": shard, "before": before})
        }


def _with(parked: dict[int, _Bodied], typed: Iterator[_Bodied]) -> Iterator[_Bodied]:
    """Both by added_id; a cell that is in both counts once, as it is being mended."""
    left = sorted(parked)
    for row, body in typed:
        while left and left[0] < row["added_id"]:
            yield parked[left.pop(0)]
        if left and left[0] == row["added_id"]:
            left.pop(0)
        yield row, body
    for added_id in left:
        yield parked[added_id]


def _rows(
    connection: DuckDBPyConnection, sql: str, values: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    reader = connection.sql(sql, params=values).to_arrow_reader(_FETCHED_ROWS)
    for batch in reader:
        yield from batch.to_pylist()


def _looked(tables: LakeTables, kind: TableKind) -> tuple[LakeTable, State] | None:
    table = tables.find(kind)
    return (table, table.look()) if table is not None else None
