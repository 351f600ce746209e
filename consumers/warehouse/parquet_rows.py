"""Rows of the table as Parquet files. Loads a large library, so only code that reads or writes a
file imports it."""

from __future__ import annotations

from typing import Any, BinaryIO, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from cellfeed.consumers.warehouse.cell_rows import WarehouseRow
from cellfeed.store.cells.sharding import row_key_text

SCHEMA: Final = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("added_id", pa.int64(), nullable=False),
        pa.field("row_key", pa.string(), nullable=False),
        pa.field("column_name", pa.string(), nullable=False),
        pa.field("ref_key", pa.int64(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("body", pa.string(), nullable=False),
    ]
)


def write_rows(rows: list[WarehouseRow], file: BinaryIO) -> None:
    """Writes rows as a Parquet file (zstd). Row order is log order, so readers skip by added_id."""
    shard, added_id, row_key, column_name, ref_key, created_at, body = zip(*rows, strict=True)
    columns: list[Any] = [
        shard,
        added_id,
        [row_key_text(key).decode() for key in row_key],
        column_name,
        ref_key,
        created_at,
        body,
    ]
    table = pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )
    pq.write_table(
        table, file, compression="zstd", use_dictionary=["shard", "row_key", "column_name"]
    )


def read_rows(path: str) -> list[WarehouseRow]:
    """The rows of a data file, in log order."""
    table = pq.ParquetFile(path).read()
    created_at = table["created_at"].cast(pa.int64()).to_pylist()
    bodies = [body.encode() for body in table["body"].to_pylist()]
    keys = [UUID(key).bytes for key in table["row_key"].to_pylist()]
    plain = [table[name].to_pylist() for name in ("shard", "added_id", "column_name", "ref_key")]
    shards, added_ids, names, ref_keys = plain
    return [
        WarehouseRow(*row)
        for row in zip(shards, added_ids, keys, names, ref_keys, created_at, bodies, strict=True)
    ]
