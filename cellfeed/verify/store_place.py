"""The store itself as a place: its logs, with every gap and damaged cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cellfeed.store.api import CellStore
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.cells.log_gaps import GapCheck, named_damage
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import SCAN_CELLS_MAX
from cellfeed.verify.place import Erased

DAMAGE_MAX: Final = 100
"""Places of one shard with lost or damaged cells that are named; `cellfeed check` counts the
others."""


_SCAN_CELLS: Final = min(2_000, SCAN_CELLS_MAX)


class StorePlace:
    """The store itself, in process or over HTTP."""

    name = "store"

    def __init__(self, store: CellStore) -> None:
        self._store = store
        self.gaps: dict[int, list[range]] = {}
        """By shard the ids that the log lacks, as found while digests were taken."""
        self.damaged: dict[int, list[range]] = {}
        """By shard the ids whose cells are damaged."""
        self.unread_from: dict[int, int] = {}
        """By shard the id from which on nothing was read, for more than ``DAMAGE_MAX`` places
        before it are damaged."""

    def first_ids(self) -> dict[int, int]:
        return {shard: head.log_start for shard, head in self._store.heads().items()}

    def next_ids(self) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self._store.heads().items()}

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        return {shard: self._digest(shard, each, erased) for shard, each in sorted(ids.items())}

    def _digest(self, shard: int, ids: range, erased: Erased) -> ShardDigest:
        digest, location, gaps = ShardDigest(), ids.start, GapCheck(shard, ids.start)
        limit, places = _SCAN_CELLS, 0
        while location < ids.stop:
            try:
                piece = self._store.get_cells_for_shard(shard, location, limit)
            except DataDamaged as error:
                named = named_damage(str(error))
                if named is None or named.shard != shard or named.ids.start < location:
                    raise
                if named.ids.start > location:
                    # First the ids before it, in ever smaller pieces: behind a gap a piece reaches
                    # further than its ids.
                    limit, location = (
                        min(limit // 2, named.ids.start - location),
                        location if limit > 1 else named.ids.start,
                    )
                    limit = max(limit, 1)
                    continue
                if (places := places + 1) > DAMAGE_MAX:
                    self.unread_from[shard] = location
                    return self._ended(shard, digest, gaps)
                if not named.is_lost:
                    self.damaged.setdefault(shard, []).append(named.ids)
                    gaps.add(location, "", b"")
                location, limit = named.ids.stop, _SCAN_CELLS
                continue
            limit = _SCAN_CELLS
            for cell in piece.cells:
                if cell.added_id < ids.stop:
                    body = erased.body(shard, cell.added_id, cell.body_json)
                    digest.add(
                        cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, body
                    )
                    gaps.add(cell.added_id, cell.column_name, body)
            if not piece.cells:
                break
            location = piece.next_location
        gaps.end(ids.stop)
        return self._ended(shard, digest, gaps)

    def _ended(self, shard: int, digest: ShardDigest, gaps: GapCheck) -> ShardDigest:
        if gaps.missing:
            self.gaps[shard] = gaps.missing
        return digest
