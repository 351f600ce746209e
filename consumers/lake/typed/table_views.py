"""Typed tables as views of DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cellfeed.consumers.lake.cell_columns import CELLS_KIND
from cellfeed.consumers.lake.contract import LakeTable, LiveFile, State, TableKind
from cellfeed.consumers.lake.data_files import DAY
from cellfeed.consumers.lake.open_table import LakeTables
from cellfeed.consumers.lake.typed.column_kinds import COLUMN
from cellfeed.store.errors import ProtectData

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def typed_tables(tables: LakeTables) -> list[LakeTable]:
    """The tables of columns, by name. Raises Unavailable."""
    found = []
    for name in tables.names():
        if name == CELLS_KIND.name:
            continue
        table = tables.find(TableKind(name, CELLS_KIND.schema, ()))
        if table is not None and table.property(COLUMN) is not None:
            found.append(table)
    return found


def add_view(connection: DuckDBPyConnection, table: LakeTable, state: State | None = None) -> None:
    """A view with the table's name and all its columns, also those that no file has yet. Raises
    ProtectData when rows of files are deleted by other files."""
    state = state or table.look()
    if state.has_row_deletes():
        raise ProtectData(
            f"{table.name} has files that delete rows of others, which DuckDB would show: read it"
            " with an engine of its format"
        )
    name = table.kind.name.replace('"', '""')
    empty = f"{name}_columns"
    connection.register(empty, table.columns().empty_table())
    rows = _rows(state.files()) or f'"{empty}"'
    has = {row[0] for row in connection.execute(f"DESCRIBE FROM {rows}").fetchall()}
    wanted = connection.execute(f'DESCRIBE FROM "{empty}"').fetchall()
    missing = "".join(
        f', NULL::{kind} AS "{column}"' for column, kind, *_ in wanted if column not in has
    )
    connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS SELECT *{missing} FROM {rows}')  # noqa: S608


def _rows(files: Sequence[LiveFile]) -> str:
    """DuckDB's function that reads the files; empty without files."""
    if not files:
        return ""
    paths = ", ".join("'" + each.path.replace("'", "''") + "'" for each in files)
    by_day = all(f"/{DAY}=" in each.path for each in files)
    hive = f", hive_types = {{'{DAY}': DATE}}" if by_day else ""
    return (
        f"read_parquet([{paths}], union_by_name = true,"
        f" hive_partitioning = {str(by_day).lower()}{hive})"
    )
