"""Two copies of a shard on two nodes, compared by digests and then by rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from cellfeed.store.cells.body_codec import ERASED_BODY, decode_body
from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.clusters.moves.shard_copies import ShardCopy
from cellfeed.store.engines.mysql.digest import is_fit, range_digest, raw_rows
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import CellfeedError

LEAF_CELLS: Final = 256
"""Ids whose rows are read on both sides, once their digests differ."""

SETTLE_S: Final = 5.0
"""How long nodes at work may differ in a cell, in seconds: a minion has an erasure, or a trim, a
moment after its master."""

_PAUSE_S: Final = 0.1

_FIELDS: Final = ("added_id", "row_key", "column_name", "ref_key", "created_at", "body")


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one cell between two nodes. ``what``: which values differ, or on which side it is missing
    or damaged."""

    shard: int
    added_id: int
    reference: str
    copy: str
    what: str
    loses: bool

    def __str__(self) -> str:
        return (
            f"shard {self.shard}, added_id {self.added_id}: {self.what} ({self.copy}, compared with"
            f" {self.reference})"
        )


class CopyPair:
    """Two nodes, compared."""

    def __init__(self, shard: int, reference: ShardCopy, copy: ShardCopy) -> None:
        self._shard, self._reference, self._copy = shard, reference, copy
        self._settles = "kept" not in (reference.kind, copy.kind)

    def in_range(self, other: ThreadPoolExecutor, ids: range) -> Iterator[Difference]:
        there = other.submit(_digest, self._copy, ids)
        if _digest(self._reference, ids) == there.result():
            return
        if len(ids) > LEAF_CELLS:
            middle = ids.start + len(ids) // 2
            yield from self.in_range(other, range(ids.start, middle))
            yield from self.in_range(other, range(middle, ids.stop))
            return
        for added_id in self._differing(ids):
            if (found := self._settled(added_id)) is not None:
                yield found

    def _differing(self, ids: range) -> list[int]:
        ours, theirs = self._rows(ids)
        return sorted(
            each
            for each in ours.keys() | theirs.keys()
            if self._judged(each, ours.get(each), theirs.get(each)) is not None
        )

    def _settled(self, added_id: int) -> Difference | None:
        """The difference in a cell, unless it goes by itself: by a minion that follows, or by a
        trim."""
        end_s = time.monotonic() + (SETTLE_S if self._settles else 0.0)
        while True:
            ours, theirs = self._rows(range(added_id, added_id + 1))
            found = self._judged(added_id, ours.get(added_id), theirs.get(added_id))
            if found is None or added_id < max(
                each.log_start(self._shard) for each in (self._reference, self._copy)
            ):
                return None
            if time.monotonic() >= end_s:
                return found
            time.sleep(_PAUSE_S)

    def _judged(
        self, added_id: int, ours: Sequence[Any] | None, theirs: Sequence[Any] | None
    ) -> Difference | None:
        ours_fit, theirs_fit = (
            True if row is None else is_fit(self._shard, row) for row in (ours, theirs)
        )
        # Where no side has it in good order, its remains stay.
        loses = theirs is not None and (
            theirs_fit is not False or ours is None or ours_fit is False
        )
        damaged_on = [
            str(each)
            for each, fit in ((self._reference, ours_fit), (self._copy, theirs_fit))
            if fit is False
        ]
        if ours is None or theirs is None:
            what = f"missing on {self._reference if ours is None else self._copy}"
        elif differ := [
            name for name, one, two in zip(_FIELDS, ours, theirs, strict=False) if one != two
        ]:
            if differ == ["body"] and not damaged_on:
                if ours[5] == ERASED_BODY and self._is_erased(ours[1]):
                    return None
                if _is_same_body(ours[5], theirs[5]):
                    return None
            what = f"another {', '.join(differ)}"
        elif damaged_on:
            what = "another checksum"
        else:
            return None
        if damaged_on:
            what += f"; its checksum says that it is damaged on {' and on '.join(damaged_on)}"
        return Difference(self._shard, added_id, str(self._reference), str(self._copy), what, loses)

    def _is_erased(self, row_key: bytes) -> bool:
        """Whether the log of the reference marks the row as erased."""
        sql = (
            f"SELECT 1 FROM {self._reference.table} WHERE row_key = X'{row_key.hex()}' AND"
            f" column_name = '{ERASED_COLUMN}'"
        )
        with self._reference.server.connection() as connection:
            return bool(query(connection, sql))

    def _rows(self, ids: range) -> tuple[dict[int, Sequence[Any]], dict[int, Sequence[Any]]]:
        found = []
        for each in (self._reference, self._copy):
            with each.server.connection() as connection:
                found.append(raw_rows(connection, each.table, ids))
        return found[0], found[1]


def _is_same_body(one: bytes, other: bytes) -> bool:
    """Whether two stored bodies are one in two encodings: the dictionary of one was retired since
    the copy was made."""
    try:
        return decode_body(one) == decode_body(other)
    except CellfeedError:  # a body that cannot be read is equal to none
        return False


def _digest(copy: ShardCopy, ids: range) -> object:
    with copy.server.connection() as connection:
        return range_digest(connection, copy.table, ids)
