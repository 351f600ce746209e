"""Following logs over HTTP, without any I/O: the request to a worker, and the meaning of the lines
that it sends.

The places passed are those of cells that were given, and of bookmarks between them. After any
broken connection the next worker is asked for the cells behind these places. So no cell is skipped,
and none is given twice.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime
from typing import Any, Final

import msgspec

from cellfeed.store.cells.cell import RESTORED_COLUMN
from cellfeed.store.cells.token import TOKEN_CHARACTERS_MAX, Token
from cellfeed.store.errors import (
    CellfeedError,
    StorageUnavailable,
    WrongAnswer,
    error_from_code,
)
from cellfeed.store.followed import LATEST, SILENT_S, FollowedCell, Trail, Wanted
from cellfeed.store.http.calls.attempts import pause
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.calls.wire import AttemptFailed
from cellfeed.store.http.follow_messages import FollowLine, FollowMessage
from cellfeed.store.http.messages import CellMessage, cell_of

LINE_BYTES_MAX: Final = TOKEN_CHARACTERS_MAX + (1 << 20)
"""One line: the longest is a bookmark of all shards."""

_decode_line: Final = msgspec.json.Decoder(FollowLine).decode


class FollowCall:
    """One follower's side of its connections. ``timeout_s``: for how long it looks for a worker
    before :meth:`open` raises."""

    def __init__(self, requests: Requests, wanted: Wanted, timeout_s: float) -> None:
        self._requests = requests
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._trail: Trail | None = None
        self._rest = bytearray()
        self._lines: deque[FollowLine] = deque()
        self._is_first = True
        """Whether the next line is the first one of its answer."""
        self._failures = 0
        self._failed_since_s = 0.0
        self._failure: Exception | None = None
        self.because = ""
        """Why shards are behind, as the worker says; empty where none is."""
        self.bookmarked = False
        """Whether places were passed, since the last cell, that none was given of."""

    @property
    def has_begun(self) -> bool:
        """Whether a worker has said where the follower begins."""
        return self._trail is not None

    @property
    def token(self) -> Token | None:
        """The token of all places passed; None before it has begun."""
        return None if self._trail is None else self._trail.here().token()

    def open(self) -> Steps[Any]:
        """A stream of the cells behind the places passed. Raises Unavailable when there is none
        within the time; calling it again tries again."""
        try:
            deadline = yield from self._paused()
            self._rest.clear()
            self._is_first = True
            asked, looks_up = self._asked(), isinstance(self._wanted.start, datetime)
            # A worker that looks a moment up in many logs may be silent for longer.
            attempt_s = self._timeout_s if looks_up and not self.has_begun else SILENT_S
            return (yield from self._requests.stream("/follow", asked, deadline, attempt_s))
        except CellfeedError:
            self._succeeded()  # the next call has its whole time again
            raise

    def _paused(self) -> Steps[float]:
        """The deadline of a request, after a pause where the last one has failed. Raises the last
        failure when the time is over."""
        deadline = self._requests.deadline()
        if self._failure is None:
            return deadline
        deadline = min(deadline, self._failed_since_s + self._timeout_s)
        if not (yield from pause(self._failures - 1, deadline, str(self._failure))):
            if isinstance(self._failure, CellfeedError):
                raise self._failure
            raise StorageUnavailable(f"not followed for {self._timeout_s} s: {self._failure}")
        return deadline

    def feed(self, piece: bytes) -> None:
        """Takes content of the stream. Raises AttemptFailed where it ends, and WrongAnswer."""
        if not piece:
            raise AttemptFailed("the worker has ended the answer", definite=True)
        *complete, rest = piece.split(b"\n")
        try:
            for line in complete:
                self._lines.append(_decode_line(self._rest + line if self._rest else line))
                self._rest.clear()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WrongAnswer(f"a line is not as the API says: {error}") from None
        self._rest += rest
        if len(self._rest) > LINE_BYTES_MAX:
            raise WrongAnswer(f"a line has more than {LINE_BYTES_MAX} bytes")

    def take_start(self) -> None:
        """Takes the first line, once it has come: where the follower begins. Raises as
        :meth:`take`."""
        if self._lines:
            line = self._lines.popleft()
            if line.error is not None:
                raise error_from_code(line.error.error, line.error.message)
            if line.bookmark is None:
                raise WrongAnswer("the first line of an answer is no bookmark")
            self._take_bookmark(line)

    def take(self) -> FollowedCell | None:
        """The next cell of the lines that have come, None behind the last one. Raises the error
        that a worker sent, WrongAnswer."""
        while self._lines:
            line = self._lines.popleft()
            if line.error is not None:
                raise error_from_code(line.error.error, line.error.message)
            if line.bookmark is not None:
                self._take_bookmark(line)
            elif line.cell is not None:
                return self._take_cell(line.cell)
        return None

    def failed(self, failure: Exception) -> None:
        """The stream is of no use any more; the next one begins behind the places passed."""
        if self._failure is None:
            self._failed_since_s = time.monotonic()
        self._failure = failure
        self._failures += 1
        self._lines.clear()

    def _asked(self) -> bytes:
        wanted = self._wanted
        asked = FollowMessage(
            columns=None if wanted.columns is None else sorted(wanted.columns),
            shards=None if wanted.shards is None else list(wanted.shards),
        )
        token = self.token
        if token is not None:
            asked.token = str(token)
        elif isinstance(wanted.start, Token):
            asked.token = str(wanted.start)
        else:
            start = wanted.start
            asked.start = start.isoformat() if isinstance(start, datetime) else start or LATEST
        return msgspec.json.encode(asked)

    def _take_bookmark(self, line: FollowLine) -> None:
        self.because = line.because
        if self._is_first:
            self._is_first = False
        else:
            self._succeeded()
        if not line.bookmark:
            return
        token = Token.parse(line.bookmark)
        if self._trail is None:
            self._trail = Trail(token.history, {})
        elif token.history != self._trail.history:
            raise WrongAnswer(f"a bookmark of {token.history}, not {self._trail.history}")
        for places in token.places:
            if places.last >= self._trail.positions.get(places.shard, 0):
                self._trail.move(places.shard, places.last + 1)
                self.bookmarked = True

    def _take_cell(self, message: CellMessage) -> FollowedCell:
        trail, wanted = self._trail, self._wanted
        if trail is None or self._is_first:
            raise WrongAnswer("a cell came before the first bookmark")
        position = trail.positions.get(message.shard, 0)
        is_next = message.added_id == position or (
            message.added_id > position
            and (wanted.columns is not None or message.column_name == RESTORED_COLUMN)
        )
        if (
            not is_next
            or (wanted.shards is not None and message.shard not in wanted.shards)
            or (wanted.columns is not None and message.column_name not in wanted.columns)
        ):
            raise WrongAnswer(
                f"the cell at {message.shard}/{message.added_id}, of column"
                f" {ascii(message.column_name)[:80]}, is not the next one behind"
                f" {message.shard}/{position} of those asked for"
            )
        trail.move(message.shard, message.added_id + 1)
        self._succeeded()
        self.bookmarked = False
        return FollowedCell.of(cell_of(message), trail.here())

    def _succeeded(self) -> None:
        self._failure, self._failures = None, 0
