"""Rows as Parquet files in the table's folder. No commit names them yet, so readers of the table do
not see them.

``data/created_day=2026-11-28/<random>.parquet`` for Iceberg, without ``data/`` for Delta: engines
and DuckDB's ``hive_partitioning`` read the day from the path.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cellfeed.consumers.lake.contract import DataFile
from cellfeed.consumers.lake.synced_files import synced_file
from cellfeed.consumers.lake.typed.conforming import conform_table
from cellfeed.consumers.lake.typed.uuid_arrays import BYTES, uuid_texts
from cellfeed.store.failpoints import declare, failpoint

DAY: Final = "created_day"
"""The partition: the day (UTC) of ``created_at``."""

ROW_GROUP_ROWS: Final = 100_000
"""So many rows share statistics: a reader of one row key opens about 10 MB."""

_STATISTICS: Final = ("shard", "added_id", "row_key", "column_name", "ref_key", "created_at")
_EPOCH: Final = date(1970, 1, 1)

declare("lake.files.written", "lake.files.all_written")


def day_folder(day: int) -> str:
    return f"{DAY}={(_EPOCH + timedelta(days=day)).isoformat()}"


def write_data_files(
    parts: Iterable[tuple[int | None, pa.Table]], folder: Path, prefix: str, schema: pa.Schema
) -> list[DataFile]:
    """One file for each part: a day, or None, and sorted rows. ``prefix``: of the files' paths in
    ``folder``. ``schema``: as the table's format wants it in the file (field ids). Raises
    OSError."""
    files = []
    for day, table in parts:
        in_day = f"{day_folder(day)}/" if day is not None else ""
        name = f"{prefix}{in_day}{secrets.token_hex(16)}.parquet"
        path = folder / name
        with synced_file(path) as file:
            pq.write_table(
                conform_table(table, schema),
                file,
                compression="zstd",
                row_group_size=ROW_GROUP_ROWS,
                use_dictionary=_in_dictionary(schema),
            )
        failpoint("lake.files.written")
        files.append(DataFile(name, day, table.num_rows, path.stat().st_size, *_statistics(table)))
    failpoint("lake.files.all_written")
    return files


def _statistics(table: pa.Table) -> tuple[Mapping[str, int | str], Mapping[str, int | str]]:
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name in _STATISTICS:
        if name not in table.column_names:
            continue
        column = table[name]
        if column.type == BYTES:
            # Sorted by it; Arrow finds no least one of fixed bytes.
            ends = uuid_texts(pa.array([column[0].as_py(), column[-1].as_py()], BYTES))
            least[name], greatest[name] = ends.to_pylist()
            continue
        ends = pc.min_max(column).as_py()
        least[name], greatest[name] = (_plain(ends[end]) for end in ("min", "max"))
    return least, greatest


def _in_dictionary(schema: pa.Schema) -> list[str]:
    """Columns whose values come again in a file: text, but not a body."""
    few = ("shard", "schema_version", "column_name", "row_key")
    return [
        field.name
        for field in schema
        if field.name in few
        or (pa.types.is_string(field.type) and field.name not in ("body", "reason"))
    ]


def _plain(value: Any) -> Any:
    """A moment as the text that Delta's statistics have; other values as they are."""
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if hasattr(value, "strftime") else value
