"""Parked cells as a file: each failed cell, its error and its body, for people and programs that
handle it elsewhere.

NDJSON: one object a line, the body as an object. CSV: a header and one record a line (RFC 4180),
the body as JSON text. Times are RFC 3339, UTC. A cell that is not in the datastore any more has no
body (null, or nothing).
"""

from __future__ import annotations

import csv
import enum
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, TextIO

from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import Cell, moment

_READ_CELLS: Final = 500
"""Parked cells whose bodies are read, and held, at a time: bodies have up to a mebibyte each."""

FIELDS: Final = (
    "group",
    "shard",
    "added_id",
    "row_key",
    "column_name",
    "ref_key",
    "attempts",
    "ended",
    "held",
    "parked_at",
    "last_tried_at",
    "skipped_because",
    "error",
    "body",
)
"""The fields of each, in this order."""


class ExportFormat(enum.StrEnum):
    """See the module."""

    NDJSON = "ndjson"
    CSV = "csv"


def write_parked(
    cells: Sequence[ParkedCell], store: CellStore, file: TextIO, form: ExportFormat
) -> int:
    """Writes them all; how many."""
    records = _records(cells, store)
    if form is ExportFormat.NDJSON:
        file.writelines(
            json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
            for record in records
        )
    else:
        rows = csv.DictWriter(file, FIELDS)
        rows.writeheader()
        for record in records:
            body = record["body"]
            rows.writerow(
                {
                    **record,
                    "body": ""
                    if body is None
                    else json.dumps(body, ensure_ascii=False, separators=(",", ":")),
                }
            )
    return len(cells)


def _records(cells: Sequence[ParkedCell], store: CellStore) -> Iterator[dict[str, Any]]:
    left = iter(cells)
    while some := list(islice(left, _READ_CELLS)):
        found = store.get_cells(
            [(parked.row_key, parked.column_name, parked.ref_key) for parked in some]
        )
        for parked, cell in zip(some, found, strict=True):
            yield _record(parked, cell)


def _record(parked: ParkedCell, cell: Cell | None) -> dict[str, Any]:
    fields = {
        "group": parked.group,
        "shard": parked.partition,
        "added_id": parked.added_id,
        "row_key": parked.row_key,
        "column_name": parked.column_name,
        "ref_key": parked.ref_key,
        "attempts": parked.attempts,
        "ended": parked.ended,
        "held": parked.is_behind,
        "parked_at": moment(parked.parked_at_us).isoformat(),
        "last_tried_at": moment(parked.last_tried_at_us).isoformat(),
        "skipped_because": parked.skipped_because,
        "error": parked.error,
        "body": cell.body if cell is not None and not cell.erased else None,
    }
    return {field: fields[field] for field in FIELDS}
