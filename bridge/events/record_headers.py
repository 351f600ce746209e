"""What a record's headers say of its cell, as text: ``added_id`` (where an offset is not the added_id, it is what a reader goes by), ``column_name``,
``ref_key``, and ``leader_epoch``, that under which the cell was written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from store.cells import StoredCell
from store.errors import DataDamaged
from store.limits import ADDED_ID_MAX

ADDED_ID: Final = "added_id"
COLUMN_NAME: Final = "column_name"
REF_KEY: Final = "ref_key"
LEADER_EPOCH: Final = "leader_epoch"
CONTENT_TYPE: Final = "content-type"
"""Of formats that ask for it (:attr:`bridge.events.formats.EventFormat.content_type`)."""

Headers = list[tuple[str, str | bytes | None]]
"""As the Kafka client takes them; the values here are bytes."""


def record_headers(cell: StoredCell, leader_epoch: int) -> Headers:
    """Of one cell's record."""
    return [
        (ADDED_ID, b"%d" % cell.added_id),
        (COLUMN_NAME, cell.column_name.encode()),
        (REF_KEY, b"%d" % cell.ref_key),
        (LEADER_EPOCH, b"%d" % leader_epoch),
    ]


def added_id_of(headers: Iterable[tuple[str, bytes | str | None]] | None) -> int | None:
    """The added_id that a record's headers name; None for a record that names none. Raises DataDamaged for one that is no number."""
    for name, value in headers or ():
        if name == ADDED_ID:
            text = value if isinstance(value, bytes) else (value or "").encode()
            if not text.isdigit() or int(text[:16]) > ADDED_ID_MAX:
                raise DataDamaged(f"a record's header added_id is {text[:40]!r}, which is no added_id")
            return int(text)
    return None


class LeaderEpochs:
    """Under which leader epoch each cell of a shard was written: by ``(leader epoch, first added_id written under it)``, ascending."""

    def __init__(self, epochs: Sequence[tuple[int, int]], newest: int) -> None:
        self._epochs = list(epochs) or [(newest, 0)]
        self.newest = newest

    def of(self, added_id: int) -> int:
        """Cells are asked for in ascending order for the most part, at the end of the log: the latest epochs are looked at first."""
        for epoch, first in reversed(self._epochs):
            if first <= added_id:
                return epoch
        return self._epochs[0][0]
