"""The state of one follower, without any I/O: the places that it has read, and those to read next.

It reads the shards whose heads have changed, in turns, and never asks a shard that has nothing new.
A shard that cannot be read just now is set aside for a while, and the others continue.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cellfeed.store.cells.cell import Cell
from cellfeed.store.engines.contract.values import Head, LogRange
from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.following.reading import PIECE_CELLS_MAX, Piece
from cellfeed.store.following.start import refuse_trimmed

READ_SHARDS_MAX: Final = 64
"""Shards read at once: the ends of many logs cost one round trip together."""

ASIDE_FIRST_S: Final = 0.05
ASIDE_MAX_S: Final = 2.0
"""For how long a shard that could not be read is set aside. The time doubles with each failure."""


class FollowState:
    """``positions``: by followed shard the next added_id to read."""

    def __init__(self, positions: Mapping[int, int]) -> None:
        self.positions = dict(positions)
        self.failed: CellfeedError | None = None
        """The error behind the cells that :meth:`take` has returned: it ends the follower."""
        self._ends: dict[int, int] = {}
        self._due: deque[int] = deque()
        self._waiting: set[int] = set()
        """Shards in ``_due``, set aside, or being read."""
        self._aside: list[tuple[float, int]] = []
        self._failures: dict[int, tuple[int, str]] = {}
        self._unsaid: set[int] = set()
        self._limit = PIECE_CELLS_MAX

    def look(self, heads: Mapping[int, Head]) -> None:
        """Takes new heads; those of shards that are not followed are passed over. Raises
        Trimmed."""
        for shard, head in heads.items():
            if shard not in self.positions:
                continue
            refuse_trimmed(shard, self.positions[shard], head)
            self._ends[shard] = max(head.watermark, self._ends.get(shard, 0))
            self._ask_again(shard)

    def ranges(self, now_s: float) -> list[LogRange]:
        """The ranges to read next; empty when there is nothing new. Each is to be given to
        :meth:`take` as a piece."""
        while self._aside and self._aside[0][0] <= now_s:
            self._due.append(heapq.heappop(self._aside)[1])
        ranges: list[LogRange] = []
        left = self._limit
        while self._due and len(ranges) < READ_SHARDS_MAX:
            shard = self._due[0]
            position = self.positions[shard]
            cells = min(self._ends[shard] - position, self._limit)
            if ranges and cells > left:
                break
            self._due.popleft()
            left -= cells
            ranges.append(LogRange(shard, position, cells))
        return ranges

    def take(self, pieces: Iterable[Piece], now_s: float) -> list[tuple[Piece, Sequence[Cell]]]:
        """The cells of these pieces that are to be given, in this order. Look at :attr:`failed`
        behind them."""
        given: list[tuple[Piece, Sequence[Cell]]] = []
        for piece in pieces:
            self._take(piece, now_s)
            given.append((piece, piece.cells))
            if self.failed is not None:
                break
        return given

    def bookmark(self) -> dict[int, int]:
        """Shards that have passed places behind their last cell since the last bookmark, with
        their positions."""
        passed = {shard: self.positions[shard] for shard in self._unsaid}
        self._unsaid.clear()
        return passed

    @property
    def because(self) -> str:
        """Why shards are behind; empty where none is."""
        if not self._failures:
            return ""
        shard, (_, reason) = next(iter(self._failures.items()))
        more = len(self._failures) - 1
        return f"shard {shard}: {reason}" + (f"; and {more} more shards" if more else "")

    def wait_s(self, now_s: float, most_s: float) -> float:
        """For how long nothing is to be read, if no head changes: at most ``most_s``."""
        if self._due:
            return 0.0
        return max(0.0, min(most_s, self._aside[0][0] - now_s)) if self._aside else most_s

    def _take(self, piece: Piece, now_s: float) -> None:
        shard = piece.shard
        moved = piece.next_location > self.positions[shard]
        self.positions[shard] = max(piece.next_location, self.positions[shard])
        if moved and not (piece.cells and piece.cells[-1].added_id + 1 == piece.next_location):
            self._unsaid.add(shard)
        elif moved:
            self._unsaid.discard(shard)
        self._limit = (
            max(1, self._limit // 2) if piece.is_cut else min(2 * self._limit, PIECE_CELLS_MAX)
        )
        if piece.error is not None and not isinstance(piece.error, Unavailable):
            self.failed = piece.error
        elif piece.error is not None or not moved:
            failures, _ = self._failures.get(shard, (0, ""))
            reason = str(piece.error or "its newest cells cannot be read yet")
            self._failures[shard] = failures + 1, reason
            pause_s = min(ASIDE_MAX_S, ASIDE_FIRST_S * 2 ** min(failures, 10))
            heapq.heappush(self._aside, (now_s + pause_s, shard))
            return
        self._failures.pop(shard, None)
        self._waiting.discard(shard)
        self._ask_again(shard)

    def _ask_again(self, shard: int) -> None:
        if shard not in self._waiting and self.positions[shard] < self._ends.get(shard, 0):
            self._waiting.add(shard)
            self._due.append(shard)
