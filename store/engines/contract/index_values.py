"""The values that index tables take and give: entries, conditions, selections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from cellfeed.store.engines.contract.values import LocatedCell

Encoded = int | bytes

ENTRIES_MAX: Final = 2_000
"""Entries of one ``apply``: some 400 kB of SQL, and a transaction of some ten milliseconds."""

UNFENCED: Final[Mapping[int, int]] = MappingProxyType({})
"""For writes that come of no cells."""

NOTHING: Final[Mapping[int, Sequence[Entry]]] = MappingProxyType({})
"""For removals without a replacement."""

ANY_FENCE: Final = 0
"""For reads after which nothing is written."""

OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=", "in")


@dataclass(frozen=True, slots=True)
class IndexTable:
    """The shape of one index version's tables. ``name`` is a checked identifier; ``columns`` gives
    for each column of cells the positions of its fields; ``widths`` for each field how many bytes
    it has at most, None for an integer. Field 0 is the shard field."""

    name: str
    columns: tuple[tuple[int, ...], ...]
    widths: tuple[int | None, ...]


class Entry(NamedTuple):
    """``refs``: per column, None where the row has no cell there. ``values``: per field, None where
    it is missing; the first is the shard value, always."""

    row_key: bytes
    live: bool
    refs: tuple[int | None, ...]
    values: tuple[Encoded | None, ...]

    @property
    def place(self) -> tuple[Encoded, bytes]:
        """The key of the entry in its table."""
        return cast("Encoded", self.values[0]), self.row_key


class Condition(NamedTuple):
    """A filter on a field, by its position. One value, or any number for ``in``. A missing field
    meets none."""

    field: int
    operator: str
    values: tuple[Encoded, ...]


class EntrySelect(NamedTuple):
    """Live entries of one shard value that meet all conditions, ordered by a field (None: by row
    key alone) and then by row key.

    ``after``: the field's value and the row key of the entry behind which to begin."""

    shard: int
    value: Encoded
    conditions: tuple[Condition, ...]
    order: int | None
    descending: bool
    after: tuple[Encoded | None, bytes] | None
    limit: int


RowRefs = tuple[bytes, tuple[int | None, ...]]
"""A row key, and for each of some columns the ref key of a cell, None for no cell."""


class RowsBelow(NamedTuple):
    """Rows of a shard, the location that their log is looked at below, and the number that the
    shard's fence had before (or ``ANY_FENCE``)."""

    shard: int
    row_keys: Sequence[bytes]
    location: int
    fence: int


class Outdated(NamedTuple):
    """Rows whose newest cells are others than those given. ``stale``: a minion said so, it may know
    of too few."""

    row_keys: set[bytes]
    stale: bool = False


class Selected(NamedTuple):
    """The entries of each selection. ``stale``: a minion gave some of them, it may know of too
    few."""

    entries: list[list[Entry]]
    stale: bool = False


class Current(NamedTuple):
    """By row key the latest cell of each column; a row without any is left out. ``stale``: a minion
    gave some of them, it may lack cells and whole rows."""

    cells: dict[bytes, list[LocatedCell]]
    stale: bool = False
