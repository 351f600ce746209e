"""A record's headers about its cell, as text: ``added_id``, ``column_name``, ``ref_key``, and
``leader_epoch``, the epoch under which the cell was written. Readers go by ``added_id`` where an
offset is not the added_id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX

ADDED_ID: Final = "added_id"
COLUMN_NAME: Final = "column_name"
REF_KEY: Final = "ref_key"
LEADER_EPOCH: Final = "leader_epoch"
CONTENT_TYPE: Final = "content-type"
"""Of formats that ask for it (:attr:`cellfeed.bridge.events.formats.EventFormat.content_type`)."""

_OF_THE_CELL: Final = 3
"""Headers of a cell beside its added_id: they come first."""

_SHARED_MAX: Final = 10_000
"""Headers that are kept to be shared, about half a kilobyte each: a bound on memory where ref keys
never come twice."""

Headers = list[tuple[str, str | bytes | None]]
"""As the Kafka client takes them; the values here are bytes."""


class SharedHeaders:
    """The headers beside the added_id: many cells have them in common, so they are made once for
    each column, ref key and leader epoch. ``more``: behind them, in every record. Safe to use from
    several threads."""

    def __init__(self, more: Headers) -> None:
        self._more = more
        self._made: dict[tuple[str, int, int], Headers] = {}

    def of(self, cells: Sequence[StoredCell], epochs: LeaderEpochs) -> list[Headers]:
        """Of each of these cells of one shard, which ascend."""
        if not cells:
            return []
        epoch_of, get, make = epochs.of, self._made.get, self._make
        if (epoch := epoch_of(cells[0].added_id)) == epoch_of(cells[-1].added_id):
            return [
                get((column, ref_key, epoch)) or make(column, ref_key, epoch)
                for _, _, column, ref_key, _, _ in cells
            ]
        return [make(cell.column_name, cell.ref_key, epoch_of(cell.added_id)) for cell in cells]

    def _make(self, column: str, ref_key: int, epoch: int) -> Headers:
        made: Headers = [
            (COLUMN_NAME, column.encode()),
            (REF_KEY, b"%d" % ref_key),
            (LEADER_EPOCH, b"%d" % epoch),
            *self._more,
        ]
        if len(self._made) < _SHARED_MAX:
            self._made[column, ref_key, epoch] = made
        return made


def without_more(shared: Headers) -> Headers:
    """Those of :class:`SharedHeaders` that describe the cell, without the ones that every record
    has behind them."""
    return shared[:_OF_THE_CELL]


def added_id_of(headers: Iterable[tuple[str, bytes | str | None]] | None) -> int | None:
    """The added_id that a record's headers name; None for a record that names none. Raises
    DataDamaged for one that is no number."""
    for name, value in headers or ():
        if name == ADDED_ID:
            text = value if isinstance(value, bytes) else (value or "").encode()
            if not text.isdigit() or int(text[:16]) > ADDED_ID_MAX:
                raise DataDamaged(
                    f"a record's header added_id is {text[:40]!r}, which is no added_id"
                )
            return int(text)
    return None


class LeaderEpochs:
    """Under which leader epoch each cell of a shard was written: by
    ``(leader epoch, first added_id written under it)``, ascending."""

    def __init__(self, epochs: Sequence[tuple[int, int]], newest: int) -> None:
        self._epochs = list(epochs) or [(newest, 0)]
        self.newest = newest

    def of(self, added_id: int) -> int:
        """Cells are asked for in ascending order for the most part, at the end of the log: the
        latest epochs are looked at first."""
        for epoch, first in reversed(self._epochs):
            if first <= added_id:
                return epoch
        return self._epochs[0][0]
