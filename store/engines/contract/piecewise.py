"""A check in pieces, each of a moment of its own. A check that takes a day must not hold one moment
for so long: SQLite's write-ahead log and MariaDB's old versions of rows would grow all the time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.contract.values import Head

UNIT_BYTES: Final = 512
"""A body counts as one cell for each so many bytes that are stored of it: a rate of cells then
bounds the bytes as well."""


class Piece(NamedTuple):
    """The part that was checked. ``next_id``: where the next piece begins; None at the log's end.
    ``cells``: how many, large ones counted several times."""

    next_id: int | None
    cells: int


class InPieces(Protocol):
    """One file or node. All calls raise StorageUnavailable where it does not answer, DataDamaged
    where it cannot be read."""

    @property
    def place(self) -> str:
        """As in :class:`~cellfeed.store.engines.contract.findings.Finding`."""
        ...

    def begin(self, into: Findings) -> list[int]:
        """Checks the small tables, and names the shards that the place has."""
        ...

    def check(self, shard: int, first: int, cells: int, into: Findings) -> Piece:
        """Looks at so many cells from an id on, about: at their checksums, and whether they are
        found by their keys."""
        ...


def piece_of(
    head: Head, first: int, cells: int, lengths: Iterable[tuple[int, int]]
) -> tuple[Head, Piece]:
    """The ends of a piece of a log, and the piece with its cost. ``lengths``: ids of the cells from
    ``first`` on, with the stored bytes of their bodies. A damaged file may give ids below
    ``first``: they are of no piece, so that each one ends behind the one before."""
    count, after = 0, head.next_added_id
    for added_id, body_bytes in lengths:
        if added_id < first:
            continue
        count += 1 + body_bytes // UNIT_BYTES
        if count >= cells:
            after = added_id + 1
            break
    ends = head._replace(
        log_start=max(first, head.log_start), next_added_id=min(after, head.next_added_id)
    )
    return ends, Piece(after if after < head.next_added_id else None, count)
