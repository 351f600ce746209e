"""How much one answer of a read holds, counted in bytes of decoded bodies.

Bodies that compress well take a thousandth of their size on disk. So a bound on stored bytes would
not bound a reader's memory. The stored bodies state their decoded sizes; nothing is decoded to
learn them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import zstandard

from cellfeed.store.cells.body_codec import CODEC_JSON_ZSTD, decoded_bytes_bound
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.limits import BODY_BYTES_MAX, READ_BYTES_MAX, SCAN_DECODED_BYTES_MAX


def within_scan(
    cells: list[StoredCell], bytes_max: int = SCAN_DECODED_BYTES_MAX
) -> list[StoredCell]:
    """The first of these cells, as many as a piece of a log may hold decoded; at least one."""
    if len(cells) * BODY_BYTES_MAX <= bytes_max or decoded(cells) <= bytes_max:
        return cells
    decoded_bytes = 0
    for index, cell in enumerate(cells):
        decoded_bytes += decoded_bytes_bound(cell.body)
        if decoded_bytes > bytes_max and index:
            return cells[:index]
    return cells


class Page:
    """The cells that a read by key has taken. It is full with the cell that brings it to
    ``READ_BYTES_MAX``, so a page that is not full is whole."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def take(self, bodies: Iterable[bytes]) -> None:
        """Counts stored bodies, each as large as it is stored or decoded, whichever is more."""
        for body in bodies:
            self._bytes += max(len(body), decoded_bytes_bound(body))

    def take_up_to_full_of(self, found: list[LocatedCell]) -> list[LocatedCell]:
        """The first of these cells, up to the one with which the page is full."""
        for index, each in enumerate(found):
            self.take([each.cell.body])
            if self.is_full:
                return found[: index + 1]
        return found

    @property
    def is_full(self) -> bool:
        return self._bytes >= READ_BYTES_MAX


def decoded(cells: Sequence[StoredCell]) -> int:
    """Bytes that the bodies come to when they are decoded, at most. Found quickly where all of them
    are of the usual codec."""
    if {cell.body[:1] for cell in cells} <= {_JSON_ZSTD}:
        try:
            sizes = list(map(zstandard.frame_content_size, [cell.body[1:19] for cell in cells]))
        except zstandard.ZstdError:  # one is damaged: its decoder raises
            sizes = [-1]
        if min(sizes, default=0) >= 0:
            return sum(sizes)
    return sum(decoded_bytes_bound(cell.body) for cell in cells)


_JSON_ZSTD: Final = bytes([CODEC_JSON_ZSTD])
