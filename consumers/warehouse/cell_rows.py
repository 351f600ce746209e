"""The rows of the table, and those gathered for the next data file."""

from __future__ import annotations

from typing import Final, NamedTuple

_ROW_OVERHEAD_BYTES: Final = 400
"""Memory of a waiting row beside its body: Python objects for seven values."""


class WarehouseRow(NamedTuple):
    """One row: one cell. ``row_key`` is 16 bytes (text in the file); ``body_json`` is the canonical
    JSON that the store keeps, byte for byte; ``created_at_us`` is microseconds since 1970 UTC.
    """

    shard: int
    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    created_at_us: int
    body_json: bytes


class RowBuffer:
    """Rows of one shard, in log order, waiting for the next data file."""

    def __init__(self) -> None:
        self.rows: list[WarehouseRow] = []
        self.bytes = 0

    def add(self, row: WarehouseRow) -> None:
        self.rows.append(row)
        self.bytes += _ROW_OVERHEAD_BYTES + len(row.body_json)

    def clear(self) -> None:
        self.rows.clear()
        self.bytes = 0
