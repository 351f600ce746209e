"""One version of an index: its tables, and the entries of a row, given cells of it.

**The view.** A writer of entries always has the view of a prefix of the row's shard log: all cells
below some location. It reads the row's cells in the first column (the one with the shard field)
from some location on, and the latest one before them. Of these it takes each cell whose ref key is
higher than all before it. The last of them says where the entry is now; the places that the others
named get a tombstone with the last one's ref key.

**Why the outcome is right in any order** (crashes, repeated batches, two writers at once, one of
them paused): views of prefixes can be compared. An entry of an older view has no higher ref key in
any register, and merging keeps the higher ones (X1). Suppose a writer with an old view writes an
entry to a place that the row has left. Another writer then reached the cell by which the row left.
In its view the old place's cell was the latest one before, so it wrote a tombstone there, with a
higher ref key. So the tombstone stays, in either order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_codec import decode_body, is_erased
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import shard_of_text
from cellfeed.store.engines.contract.index_values import Encoded, Entry, IndexTable
from cellfeed.store.indexes.definition import IndexDefinition, IndexField
from cellfeed.store.indexes.values import BYTES_TYPES, WrongType, encoder, shard_text

Places = dict[int, list[Entry]]
"""Entries by the shard that they belong to."""

_MISSING: Final = object()


class RowView(NamedTuple):
    """``first``: cells of the first column in the order of the log. ``others``: the latest cell of
    each other column, by the column's number."""

    first: Sequence[StoredCell]
    others: Mapping[int, StoredCell]


class RejectedValue(NamedTuple):
    """A value that is not of its field's type, and counts as missing."""

    row_key: bytes
    column_name: str
    field: str
    type: str


class IndexVersion:
    """See the module. ``shards``: of the datastore. Any number of threads."""

    def __init__(self, definition: IndexDefinition, number: int, shards: int) -> None:
        self.definition = definition
        self.number = number
        self.shards = shards
        self.group = index_group(definition.table, number)
        """The trigger group that keeps it: its offsets say how far the index is."""
        positions: list[tuple[int, ...]] = []
        for column in definition.column_defs:
            begin = sum(map(len, positions))
            positions.append(tuple(range(begin, begin + len(column.fields))))
        widths = tuple(BYTES_TYPES.get(field.type) for field in definition.fields)
        self.table = IndexTable(f"ix_{definition.table}_v{number}", tuple(positions), widths)
        self._number_of = {column: number for number, column in enumerate(definition.columns)}
        self._readers = [
            [(field, encoder(field.type)) for field in column.fields]
            for column in definition.column_defs
        ]
        self._shard_type = definition.shard_field.type
        self._shard_of: dict[Encoded, int] = {}

    def column_number(self, column: str) -> int | None:
        """Which of the index's columns this one is."""
        return self._number_of.get(column)

    def shard_of_value(self, value: Encoded) -> int:
        """Where entries of this shard value are."""
        shard = self._shard_of.get(value)
        if shard is None:
            shard = shard_of_text(shard_text(self._shard_type, value), self.shards)
            if len(self._shard_of) > _REMEMBERED_MAX:
                self._shard_of.clear()
            self._shard_of[value] = shard
        return shard

    def values_of(
        self, column: int, cell: StoredCell, rejected: list[RejectedValue] | None = None
    ) -> list[Encoded | None]:
        """The fields of a cell of that column, encoded; None for a missing or rejected one, and for
        each of an erased cell. Raises DataDamaged."""
        if is_erased(cell.body):
            return [None] * len(self._readers[column])
        body = canonical_json.parse(decode_body(cell.body))
        found: list[Encoded | None] = []
        for field, encode in self._readers[column]:
            value = body.get(field.path[0], _MISSING) if len(field.path) == 1 else _at(body, field)
            if value is None or value is _MISSING:
                found.append(None)
                continue
            try:
                found.append(encode(value))
            except WrongType:
                found.append(None)
                if rejected is not None:
                    rejected.append(
                        RejectedValue(cell.row_key, cell.column_name, field.name, field.type)
                    )
        return found

    def entry_of(self, view: RowView, rejected: list[RejectedValue] | None = None) -> Entry | None:
        """The live entry of a row; None where the latest cell of the first column is missing or
        names no shard value."""
        if not view.first:
            return None
        latest = max(view.first, key=_ref_key)
        values = self.values_of(0, latest, rejected)
        if values[0] is None:
            return None
        refs: list[int | None] = [latest.ref_key]
        for number in range(1, len(self._readers)):
            cell = view.others.get(number)
            refs.append(cell.ref_key if cell is not None else None)
            values += (
                self.values_of(number, cell, rejected)
                if cell is not None
                else [None] * len(self._readers[number])
            )
        return Entry(latest.row_key, True, tuple(refs), tuple(values))

    def left_places(self, view: RowView, entry: Entry | None) -> list[Entry]:
        """Tombstones for the places that the row has left, as far as the view goes back."""
        if len(view.first) < 2:
            return []
        highest = view.first[0]
        records = [highest]
        for cell in view.first[1:]:
            if cell.ref_key > highest.ref_key:
                highest = cell
                records.append(cell)
        here = entry.values[0] if entry is not None else None
        places = {
            value
            for cell in records[:-1]
            if (value := self.values_of(0, cell)[0]) is not None and value != here
        }
        return [self.tombstone(highest.row_key, value, highest.ref_key) for value in places]

    def tombstone(self, row_key: bytes, value: Encoded, ref_key: int) -> Entry:
        """The mark that the row is not at this place as of that ref key of its first column."""
        refs = (ref_key, *[None] * (len(self._readers) - 1))
        return Entry(row_key, False, refs, (value, *[None] * (len(self.definition.fields) - 1)))

    def views(self, cells: Iterable[StoredCell]) -> dict[bytes, RowView]:
        """Per row key, of cells in the order of the log (and before them, in any order, those that
        come from before)."""
        rows: dict[bytes, tuple[list[StoredCell], dict[int, StoredCell]]] = {}
        for cell in cells:
            number = self._number_of.get(cell.column_name)
            if number is None:
                continue
            row = rows.get(cell.row_key)
            if row is None:
                row = rows[cell.row_key] = ([], {})
            if number == 0:
                row[0].append(cell)
            elif (known := row[1].get(number)) is None or cell.ref_key > known.ref_key:
                row[1][number] = cell
        return {row_key: RowView(*row) for row_key, row in rows.items()}

    def by_shard(self, entries: Iterable[Entry]) -> Places:
        """Entries by the shard of their shard value."""
        found: Places = {}
        for entry in entries:
            found.setdefault(self.shard_of_value(entry.place[0]), []).append(entry)
        return found


_REMEMBERED_MAX: Final = 50_000
"""Shard values whose shard is remembered: a driver's trips come again and again."""


INDEX_GROUPS: Final = "index."
"""Begins the names of the groups of index versions."""


def index_group(name: str, number: int) -> str:
    """The trigger group of an index version."""
    return f"{INDEX_GROUPS}{name}.v{number}"


def _ref_key(cell: StoredCell) -> int:
    return cell.ref_key


def _at(body: dict[str, Any], field: IndexField) -> object:
    value: object = body
    for step in field.path:
        if not isinstance(value, dict) or step not in value:
            return _MISSING
        value = value[step]
    return value
