"""Stored cells as readers of the API get them, and as a copy keeps those of an erased row."""

from __future__ import annotations

from uuid import UUID

from cellfeed.store.cells.body_codec import ERASED_BODY, decode_body
from cellfeed.store.cells.cell import Cell, StoredCell, moment


def cell_from_stored(shard: int, stored: StoredCell, *, stale: bool = False) -> Cell:
    """The cell of a log entry, its body decompressed. Raises DataDamaged."""
    return Cell(
        row_key=UUID(bytes=stored.row_key),
        column_name=stored.column_name,
        ref_key=stored.ref_key,
        body_json=decode_body(stored.body),
        shard=shard,
        added_id=stored.added_id,
        created_at=moment(stored.created_at_us),
        stale=stale,
    )


def without_body(cell: StoredCell, erased: set[bytes]) -> StoredCell:
    """The cell as it is to be written: its row may have been erased since the copy was made."""
    return cell._replace(body=ERASED_BODY) if cell.row_key in erased else cell
