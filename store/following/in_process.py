"""A follower of a store in process: it reads the logs itself, woken by the writers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Self
from uuid import uuid4

from cellfeed.store.cells.cell import Cell, microseconds
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import Unavailable
from cellfeed.store.followed import BOOKMARK_S, FollowedCell, Trail, Wanted
from cellfeed.store.following.heads import POLL_INTERVAL_S
from cellfeed.store.following.reading import read_pieces
from cellfeed.store.following.start import check_token, followed_shards, start_positions
from cellfeed.store.following.state import FollowState
from cellfeed.store.wakeups.datagrams import Listener

AWAY_S: Final = 20.0
"""For how long the storage may be away before ``next`` raises its error: as long as a client's
calls try."""


class StoreFollower:
    """As :class:`cellfeed.store.followed.Follower`. ``on_bookmark`` is called in the iterating
    thread with the token, at most every ``BOOKMARK_S``, when places were passed without a cell to
    give."""

    def __init__(
        self, engine: Engine, wanted: Wanted, on_bookmark: Callable[[str], object] | None
    ) -> None:
        self._engine = engine
        self._columns = wanted.columns
        self._on_bookmark = on_bookmark
        self._closed = threading.Event()
        history = engine.history.history_id
        check_token(wanted, history, engine.shards)
        shards = followed_shards(wanted, engine.shards)
        self._listener: Listener | None = None
        with suppress(Unavailable):  # without one it polls
            self._listener = Listener(engine.state, f"follower-{uuid4().hex}")
        try:
            changes = engine.heads_since(None)
            heads = {shard: changes.heads[shard] for shard in shards}
            positions = start_positions(
                wanted, heads, lambda shard, at: engine.locate(shard, microseconds(at))
            )
        except BaseException:
            self.close()
            raise
        self._mark = changes.mark
        self._trail = Trail(history, positions)
        self._state = FollowState(positions)
        self._state.look(heads)
        self._given: deque[tuple[int, int, Cell | None]] = deque()
        """Cells to be given, each with its shard and the position behind it; and positions behind
        places that have none."""
        self._bookmark_at_s = time.monotonic() + BOOKMARK_S
        self._passed = False

    @property
    def token(self) -> str:
        return str(self._trail.here().token())

    def __iter__(self) -> Iterator[FollowedCell]:
        return self

    def __next__(self) -> FollowedCell:
        away_since_s: float | None = None
        while not self._closed.is_set():
            if (cell := self._next_given()) is not None:
                return cell
            if (failed := self._state.failed) is not None:
                raise failed
            try:
                self._look()
                away_since_s = None
            except Unavailable:
                now_s = time.monotonic()
                away_since_s = away_since_s or now_s
                if now_s - away_since_s > AWAY_S:
                    raise
                self._closed.wait(POLL_INTERVAL_S)
        raise StopIteration

    def close(self) -> None:
        self._closed.set()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_listener", None) is not None:
            self.close()

    def _next_given(self) -> FollowedCell | None:
        while self._given:
            shard, position, cell = self._given.popleft()
            self._trail.move(shard, position)
            if cell is not None:
                self._passed = False
                return FollowedCell.of(cell, self._trail.here())
            self._passed = True
        if time.monotonic() >= self._bookmark_at_s:
            self._bookmark_at_s = time.monotonic() + BOOKMARK_S
            if self._passed and self._on_bookmark is not None:
                self._on_bookmark(self.token)
            self._passed = False
        return None

    def _look(self) -> None:
        """Reads new cells, or waits a moment."""
        ranges = self._state.ranges(time.monotonic())
        if ranges:
            pieces = read_pieces(self._engine, ranges, self._columns)
            for piece, cells in self._state.take(pieces, time.monotonic()):
                self._given += ((piece.shard, cell.added_id + 1, cell) for cell in cells)
                if not cells or cells[-1].added_id + 1 < piece.next_location:
                    self._given.append((piece.shard, piece.next_location, None))
            return
        wait_s = self._state.wait_s(time.monotonic(), POLL_INTERVAL_S)
        listener = self._listener
        try:
            if listener is None:
                self._closed.wait(wait_s)
            else:
                listener.wait(wait_s)
        except (OSError, ValueError):  # closed meanwhile, by another thread
            return
        changes = self._engine.heads_since(self._mark)
        self._state.look(changes.heads)
        self._mark = changes.mark
