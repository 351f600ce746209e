"""A shard's log in memory, with the calls that blocks make at an engine: properties are tried over
thousands of logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.canonical_json import canonical
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.values import LogRange


def log_cell(
    added_id: int,
    row: int = 0,
    column: str = "BASE",
    ref_key: int = 0,
    body: dict[str, Any] | None = None,
) -> StoredCell:
    return StoredCell(
        added_id,
        UUID(int=row).bytes,
        column,
        ref_key,
        1_700_000_000_000_000 + added_id,
        encode_body(canonical(body or {})),
    )


class LogOfCells:
    """Promises E7 and E16 of the engine contract. ``scan_cells_max``: a scan ends early, as after
    many bytes."""

    def __init__(self, cells: Sequence[StoredCell] = (), scan_cells_max: int = 1_000_000) -> None:
        self.cells = list(cells)
        self._scan_cells_max = scan_cells_max
        self.scanned = 0

    def commit_group(self, shard: int) -> str:
        return str(shard * 0)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        del shard
        found = [cell for cell in self.cells if cell.added_id >= location][
            : min(limit, self._scan_cells_max)
        ]
        self.scanned += len(found)
        return found

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        return [self.scan(*each) for each in ranges]

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        del shard
        newest: dict[tuple[bytes, str], int] = {}
        for cell in self.cells:
            if log_start <= cell.added_id < watermark:
                key = (cell.row_key, cell.column_name)
                newest[key] = max(cell.ref_key, newest.get(key, cell.ref_key))
        return {
            cell.added_id
            for cell in self.cells
            if start <= cell.added_id < end
            and cell.ref_key < newest.get((cell.row_key, cell.column_name), cell.ref_key)
        }
