"""Reading a lake's table: SQL by DuckDB, digests. Sees committed rows only, also while loaders are
at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from cellfeed.consumers.duckdb_views import NO_CELLS, make_views, quoted_paths, rows_of
from cellfeed.consumers.lake.cell_columns import CELLS, CELLS_KIND
from cellfeed.consumers.lake.contract import LiveFile, State
from cellfeed.consumers.lake.data_files import DAY
from cellfeed.consumers.lake.open_table import LakeTables, Place
from cellfeed.consumers.lake.positions import START
from cellfeed.consumers.lake.typed.table_views import add_view, typed_tables
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.errors import NotFound, ProtectData

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY: Final = "256MB"
"""Of a query: more goes to DuckDB's files in the temporary folder."""

_COLUMNS: Final = ", ".join(CELLS.names)
_OF_SHARD: Final = """
    SELECT added_id, row_key, column_name, ref_key, body FROM cells
    WHERE shard = ? AND added_id >= ? AND added_id < ? ORDER BY added_id
"""
_FETCHED_ROWS: Final = 10_000


class LakeView:
    """The table ``cells`` of a lake, as its newest snapshot stands at each call."""

    def __init__(self, place: Place) -> None:
        """Raises NotFound when there is no table, Unavailable when its catalog does not answer."""
        self._tables = LakeTables(place)
        table = self._tables.find(CELLS_KIND)
        if table is None:
            raise NotFound(
                f"{place.storage} has no table {place.namespace}.cells yet: its loader makes it"
            )
        self._table = table

    def look(self) -> State:
        return self._table.look()

    def next_ids(self) -> dict[int, int]:
        """Per shard the added_id behind the last one of the table."""
        return {shard: each.next_id for shard, each in self.look().positions.items()}

    def connect(self, state: State | None = None) -> DuckDBPyConnection:
        """A DuckDB connection in memory with the views ``cells`` (all rows) and ``latest`` (highest
        ref key per row key and column, without erased rows). Each typed table has a view, too. A
        filter on ``created_day`` reads the files of these days alone. Raises ProtectData when rows
        of files are deleted by other files."""
        import duckdb  # a large library: loaded for SQL only

        state = state or self.look()
        if state.has_row_deletes():
            raise ProtectData(
                f"{self._table.name} has files that delete rows of others, which DuckDB would show:"
                " read it with an engine of its format"
            )
        connection = duckdb.connect(config={"memory_limit": MEMORY})
        make_views(connection, _rows(state.files()))
        for table in typed_tables(self._tables):
            add_view(connection, table)
        return connection

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        """The rows that a SQL query over the views gives, as dicts. Raises DuckDB's own errors for
        bad SQL."""
        with self.connect() as connection:
            return rows_of(connection, sql, parameters)

    def digests(
        self,
        ids: Mapping[int, range] | None = None,
        body_of: Callable[[int, int, bytes], bytes] | None = None,
    ) -> dict[int, ShardDigest]:
        """The digest of each shard, of the cells with the added_ids of ``ids`` (0 to its position
        without). ``body_of``, given shard, added_id and body, says which body counts. Raises
        ValueError for an added_id that is there twice."""
        state = self.look()
        positions = state.positions
        if ids is None:
            ids = {shard: range(each.next_id) for shard, each in positions.items()}
        found = {}
        with self.connect(state) as connection:
            for shard in sorted(ids):
                digest = found[shard] = ShardDigest()
                # Beyond its position a table has no rows: those that are there anyway count.
                wanted = ids[shard]
                last = wanted.stop >= positions.get(shard, START).next_id
                stop = (1 << 62) if last else wanted.stop
                for added_id, key, column, ref_key, text in _fetched(
                    connection, shard, wanted.start, stop
                ):
                    body = text.encode()
                    if body_of is not None:
                        body = body_of(shard, added_id, body)
                    digest.add(added_id, UUID(key).bytes, column, ref_key, body)
        return found


def _fetched(
    connection: DuckDBPyConnection, shard: int, start: int, stop: int
) -> Iterator[tuple[int, str, str, int, str]]:
    result = connection.execute(_OF_SHARD, [shard, start, stop])
    while rows := result.fetchmany(_FETCHED_ROWS):
        yield from rows


def _rows(files: Sequence[LiveFile]) -> str:
    if not files:
        return f"SELECT *, NULL::DATE AS {DAY} FROM ({NO_CELLS})"  # noqa: S608
    paths = quoted_paths([each.path for each in files])
    by_day = all(f"/{DAY}=" in each.path for each in files)
    day = DAY if by_day else f"CAST(created_at AS DATE) AS {DAY}"
    hive = f", hive_types = {{'{DAY}': DATE}}" if by_day else ""
    return (
        f"SELECT {_COLUMNS}, {day} FROM read_parquet({paths}, union_by_name = true,"  # noqa: S608
        f" hive_partitioning = {str(by_day).lower()}{hive})"
    )
