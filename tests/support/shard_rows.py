"""Rows of the shard that a test wants."""

from __future__ import annotations

from itertools import count, islice
from uuid import UUID

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.sharding import shard_of


def row_of_shard(shard: int, shards: int, number: int = 0) -> UUID:
    """The row key of this number among those of the shard."""
    assert 0 <= shard < shards, "no row is of a shard that there is not"
    rows = (UUID(int=each) for each in count() if shard_of(UUID(int=each).bytes, shards) == shard)
    return next(islice(rows, number, None))


def cell_of_shard(shard: int, shards: int, ref_key: int) -> NewCell:
    """A cell of the shard's first row."""
    return new_cell(row_of_shard(shard, shards), "BASE", ref_key, {"n": ref_key})
