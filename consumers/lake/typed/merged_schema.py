"""The columns of a table for all versions of a column's schema.

A version adds columns, also members of nested records. Everything that a body has may be null, as a
later version may leave it out. A version that would change the type of a column is refused, with
the reason: bodies that fit it alone are parked, and stay in the table of all cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from cellfeed.consumers.lake.data_files import DAY

KEYS: Final = ("shard", "added_id", "row_key", "ref_key", "created_at", "schema_version")
"""Columns that each typed table has beside those of the body."""


class _Incompatible(Exception):
    pass


class MergedSchema:
    """``members``: the body's, in the order of the ``fields`` they have in the table; ``refused``:
    versions and reasons."""

    def __init__(self, versions: Sequence[tuple[int, Any]]) -> None:
        self.refused: dict[int, str] = {}
        merged: dict[str, pa.DataType] = {}
        for number, record in versions:
            try:
                merged = _merged_members(merged, _members(record), "body")
            except _Incompatible as reason:
                self.refused[number] = str(reason)
        self.members = list(merged)
        self.fields = [
            pa.field(name, kind)
            for name, kind in zip(column_names(self.members), merged.values(), strict=True)
        ]


def column_names(members: Sequence[str]) -> list[str]:
    """A column for each member. Engines ignore the case of names: those that differ in it alone
    get a number. Those with a name of the table's own get the prefix ``body_``."""
    taken = {*KEYS, DAY}
    names = []
    for member in members:
        name = f"body_{member}" if member.lower() in (*KEYS, DAY) else member
        plain, number = name, 2
        while name.lower() in taken:
            name, number = f"{plain}_{number}", number + 1
        taken.add(name.lower())
        names.append(name)
    return names


def _members(record: Any) -> dict[str, pa.DataType]:
    fields = [record.field(place) for place in range(record.num_fields)]
    return {field.name: field.type for field in fields}


def _merged_members(
    one: dict[str, pa.DataType], other: dict[str, pa.DataType], path: str
) -> dict[str, pa.DataType]:
    found = dict(one)
    for name, kind in other.items():
        found[name] = _merged(found[name], kind, f"{path}.{name}") if name in found else kind
    return found


def _merged(one: Any, other: Any, path: str) -> pa.DataType:
    if one == other:
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        members = _merged_members(_members(one), _members(other), path)
        return pa.struct([pa.field(name, kind) for name, kind in members.items()])
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_merged(one.value_type, other.value_type, f"{path}[]"))
    if pa.types.is_map(one) and pa.types.is_map(other):
        return pa.map_(one.key_type, _merged(one.item_type, other.item_type, f"{path}[]"))
    raise _Incompatible(f"{path} would change from {one} to {other}")
