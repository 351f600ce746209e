"""The rows of a loader that no commit has yet, and the positions they lead to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from cellfeed.bridge.events.envelope import decode_record
from cellfeed.consumers.lake.cell_columns import CellColumns
from cellfeed.consumers.lake.positions import Position, Positions
from cellfeed.store.errors import DataDamaged


class Sealed(NamedTuple):
    """Rows that one commit is to have, and the positions before and behind them."""

    rows: CellColumns
    starts: Positions
    ends: Positions


class WaitingRows:
    """Rows of the shards that a loader reads. ``offset_is_added_id``: hold every offset against the
    added_id, as is right for a gateway's full topic."""

    def __init__(self, *, offset_is_added_id: bool) -> None:
        self._offset_is_added_id = offset_is_added_id
        self._next: dict[int, Position] = {}
        self._begin()

    @property
    def count(self) -> int:
        return self._columns.rows

    @property
    def memory_bytes(self) -> int:
        return self._columns.memory_bytes

    @property
    def age_s(self) -> float:
        """How long the oldest row has waited, seconds."""
        return time.monotonic() - self._since if self._columns.rows else 0.0

    @property
    def shards(self) -> list[int]:
        """Those that are read."""
        return sorted(self._next)

    def reads(self, shard: int) -> bool:
        return shard in self._next

    def next_offset(self, shard: int) -> int:
        """The offset behind the last record taken: where reading continues."""
        return self._next[shard].next_offset

    def place(self, shard: int, position: Position) -> None:
        """Begins to read a shard, none of whose rows wait."""
        self._next[shard] = position

    def forget(self) -> list[int]:
        """Gives all waiting rows up, and stops reading; returns the shards that were read."""
        shards, self._next = sorted(self._next), {}
        self._begin()
        return shards

    def drop(self, shard: int) -> None:
        """Stops reading a shard, none of whose rows wait."""
        self._next.pop(shard, None)

    def add(
        self,
        shard: int,
        offset: int,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes],
        timestamp_ms: int,
    ) -> None:
        """Takes the record at ``offset``, unless it was taken already. Key, headers and timestamp
        count where it has no value (an erased cell).

        Raises DataDamaged for a record that is no cell of this shard or contradicts the log's
        order. Nothing of it is taken then, and nothing behind it may be.
        """
        before = self._next[shard]
        if offset < before.next_offset:
            return
        try:
            event = decode_record(shard, key, value, headers, timestamp_ms)
        except DataDamaged as error:
            raise DataDamaged(f"{_at(shard, offset)}: {error}") from error
        if event.shard != shard:
            raise DataDamaged(f"{_at(shard, offset)} is a cell of shard {event.shard}")
        if self._offset_is_added_id and event.added_id != offset:
            raise DataDamaged(
                f"{_at(shard, offset)} has added_id {event.added_id}; in a gateway's topic the"
                " offset is the added_id"
            )
        if event.added_id < before.next_id:
            raise DataDamaged(
                f"{_at(shard, offset)} has added_id {event.added_id}, which comes before"
                f" {before.next_id}"
            )
        if not self._columns.rows:
            self._since = time.monotonic()
        self._columns.add(event)
        if shard not in self._starts:
            self._starts[shard] = before
        self._next[shard] = Position(event.added_id + 1, offset + 1)

    def seal(self) -> Sealed:
        """All waiting rows; from now on others wait."""
        sealed = Sealed(
            self._columns, self._starts, {shard: self._next[shard] for shard in self._starts}
        )
        self._begin()
        return sealed

    def _begin(self) -> None:
        self._columns = CellColumns()
        self._starts: dict[int, Position] = {}
        self._since = 0.0


def _at(shard: int, offset: int) -> str:
    return f"the record of partition {shard} at offset {offset}"
