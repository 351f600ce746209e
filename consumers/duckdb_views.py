"""SQL over a table of cells in files of either format: the views ``cells`` and ``latest``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from cellfeed.store.cells.cell import ERASED_COLUMN

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NO_CELLS: Final = (
    "SELECT 0::INTEGER AS shard, 0::BIGINT AS added_id, '' AS row_key, '' AS column_name, 0::BIGINT"
    " AS ref_key, NULL::TIMESTAMPTZ AS created_at, '' AS body WHERE false"
)
"""The columns of a table that has no file yet."""

_LATEST: Final = f"""
    CREATE VIEW latest AS
    SELECT * FROM cells
    WHERE row_key NOT IN (SELECT row_key FROM cells WHERE column_name = '{ERASED_COLUMN}')
    QUALIFY row_number() OVER (PARTITION BY row_key, column_name ORDER BY ref_key DESC) = 1
"""  # noqa: S608
"""Without the rows that the log marks as erased, even if older files still hold them."""


def quoted_paths(paths: Sequence[str]) -> str:
    """A list of files, as DuckDB's functions take it."""
    return "[" + ", ".join("'" + path.replace("'", "''") + "'" for path in paths) + "]"


def make_views(connection: DuckDBPyConnection, cells: str) -> None:
    """Makes ``cells`` of a SELECT, and ``latest``: the highest ref key of each row key and column,
    without erased rows. Moments are in UTC."""
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE VIEW cells AS {cells}")
    connection.execute(_LATEST)


def rows_of(
    connection: DuckDBPyConnection, sql: str, parameters: Sequence[object]
) -> list[dict[str, Any]]:
    """The rows of a query, as dicts. Raises DuckDB's own errors for bad SQL."""
    rows: list[dict[str, Any]] = (
        connection.sql(sql, params=list(parameters)).to_arrow_table().to_pylist()
    )
    return rows
