"""A parked cell for tests, which name the fields that count for them."""

from __future__ import annotations

from typing import Any, Final

from cellfeed.bridge.triggers.parked.cell import ParkedCell

_USUAL: Final[dict[str, Any]] = {
    "group": "billing",
    "topic": "trips",
    "row_key": "",
    "column_name": "BASE",
    "ref_key": 1,
    "error": "no",
    "attempts": 1,
    "parked_at_us": 1,
    "last_tried_at_us": 1,
}


def parked_cell(partition: int, added_id: int, **fields: Any) -> ParkedCell:
    """The cell with those fields, and with usual ones."""
    return ParkedCell(**{**_USUAL, **fields, "partition": partition, "added_id": added_id})
