"""The archived parts of a transaction of a master's binlog: all that a restore needs and no
increment has.

    cells         cells that puts and erasures added, byte for byte under their ids.
    bodies        cells whose stored body another one has replaced: an erasure, or a rewriting.
    epochs        where leader epochs begin.
    log_starts    how far logs were trimmed.
    dictionaries  contents that bodies may need.

State entries are not kept: a restore takes those of the newest increment. An offset from behind it
could lie beyond the cells of another cluster's archive, and cells would be skipped.
"""

from __future__ import annotations

import msgspec

from cellfeed.store.cells.cell import StoredCell


class AddedCell(msgspec.Struct, frozen=True, array_like=True):
    """``leader_epoch``: under which it was written, as readers see it; -1 where the transaction
    does not say."""

    shard: int
    leader_epoch: int
    cell: StoredCell


class EpochBegin(msgspec.Struct, frozen=True, array_like=True):
    """Ids from ``first_added_id`` on belong to the epoch, until a later one begins."""

    shard: int
    leader_epoch: int
    first_added_id: int


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    """See the module. ``log_starts``: by shard; ``dictionaries``: each as a line of an export."""

    cells: list[AddedCell] = []
    bodies: list[AddedCell] = []
    epochs: list[EpochBegin] = []
    log_starts: list[tuple[int, int]] = []
    dictionaries: list[bytes] = []

    @property
    def is_empty(self) -> bool:
        return not (
            self.cells or self.bodies or self.epochs or self.log_starts or self.dictionaries
        )

    @property
    def size_bytes(self) -> int:
        """Its approximate size in memory."""
        return sum(len(each.cell.body) + 100 for each in (*self.cells, *self.bodies)) + sum(
            map(len, self.dictionaries)
        )
