"""Cells of one column as rows of its typed table, and of the table of parked ones."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cellfeed.consumers.lake.typed.bodies import ColumnBodies
from cellfeed.consumers.lake.typed.column_kinds import parked_kind, typed_kind
from cellfeed.consumers.lake.typed.conforming import conform
from cellfeed.consumers.lake.typed.uuid_arrays import BYTES
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON

CHUNK_ROWS: Final = 16_384
"""Bodies that are Python's objects at a time."""

REASON_CHARACTERS_MAX: Final = 500


class TypedCells(NamedTuple):
    """``rows``: as the column's typed table has them; ``unfit``: as its table of parked cells has
    them."""

    rows: pa.Table
    unfit: pa.Table


def typed_cells(column: ColumnBodies, cells: pa.Table) -> TypedCells:
    """``cells``: rows of the table of all cells, or of parked ones. Those of other columns and
    erased ones are left out."""
    typed_schema = typed_kind(column.column, column.schema.fields).schema
    parked_schema = parked_kind(column.column).schema
    if "column_name" in cells.column_names:
        cells = cells.filter(pc.equal(cells["column_name"], column.column))
    cells = cells.filter(pc.not_equal(cells["body"], ERASED_JSON.decode()))
    rows, unfit = [typed_schema.empty_table()], [parked_schema.empty_table()]
    for start in range(0, cells.num_rows, CHUNK_ROWS):
        part = cells.slice(start, CHUNK_ROWS)
        found = column.rows(part["body"].cast(pa.binary()).to_pylist())
        if found.places:
            own = part if found.is_whole else part.take(found.places)
            numbers = pa.array(found.versions, pa.int32())
            columns = [*_keys(own), numbers, *found.columns]
            rows.append(pa.Table.from_arrays(columns, schema=typed_schema))
        if found.unfit:
            own = part.take([place for place, _ in found.unfit])
            columns = [
                *_keys(own),
                pa.array([column.count] * own.num_rows, pa.int32()),
                pa.array([reason[:REASON_CHARACTERS_MAX] for _, reason in found.unfit]),
                own["body"],
            ]
            unfit.append(pa.Table.from_arrays(columns, schema=parked_schema))
    return TypedCells(pa.concat_tables(rows), pa.concat_tables(unfit))


def erased_rows(cells: pa.Table) -> pa.Table:
    """The marks of erased rows among cells: ``row_key`` and ``added_id``."""
    marks = cells.filter(pc.equal(cells["column_name"], ERASED_COLUMN))
    return pa.table({"row_key": conform(marks["row_key"], BYTES), "added_id": marks["added_id"]})


def _keys(part: pa.Table) -> list[pa.Array]:
    return [
        part["shard"],
        part["added_id"],
        conform(part["row_key"], BYTES),
        part["ref_key"],
        part["created_at"],
    ]
