"""A cell that only the dead master had."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True)
class LostCell:
    """A cell that was on the old master only. ``added_id``: its id on the old master; another cell
    gets it now."""

    row_key: UUID
    column_name: str
    ref_key: int
    shard: int
    added_id: int
