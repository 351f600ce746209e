"""HTTP/1.1 as a client writes and reads it, without any I/O.

Every request carries a random number, which the worker repeats in its answer: an answer with
another number is somebody else's. A worker of an earlier version repeats none. httptools parses
the answers.
"""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

import httptools

from cellfeed.store.http.messages import HISTORY, REQUEST_NUMBER

ANSWER_BYTES_MAX: Final = 256 << 20
"""One answer: a log scan of many shards is the largest. A peer that sends without end costs an
error, not the memory."""

CONNECTIONS_KEPT_MAX: Final = 64
"""Idle connections kept per worker: as many as callers are likely to wait at once."""

IDLE_S_MAX: Final = 60.0
"""Idle connections older than this are not used again: the worker closes them after 75 s, and would
race with a request."""

_NUMBER_HEADER: Final = REQUEST_NUMBER.encode()
_HISTORY_HEADER: Final = HISTORY.encode()


class Request(NamedTuple):
    """One request, for a worker that serves ``history`` (None: whichever it serves)."""

    method: str
    target: str
    content: bytes
    media_type: str
    history: str | None = None

    def written(self, worker: str, authorization: str = "") -> tuple[bytes, bytes]:
        """Its bytes as they go to ``worker`` (``host:port``), and its number. ``authorization``: a
        whole field, or nothing."""
        number = b"%016x" % random.getrandbits(64)
        head = (
            f"{self.method} {self.target} HTTP/1.1\r\nhost: {worker}\r\naccept:"
            f" application/json\r\n{REQUEST_NUMBER}: {number.decode()}\r\n{authorization}"
        )
        if self.history is not None:
            head += f"{HISTORY}: {self.history}\r\n"
        if self.content:
            head += f"content-type: {self.media_type}\r\ncontent-length: {len(self.content)}\r\n"
        return head.encode("ascii") + b"\r\n" + self.content, number


class Answer(NamedTuple):
    """One whole answer."""

    status: int
    content: bytes
    history: str | None = None
    """Which history the worker serves; None when it does not say."""
    stream: Any = None
    """Of an answer that is read while it comes. Its reader closes it."""


class AttemptFailed(Exception):
    """One attempt had no answer. ``definite``: the worker cannot have carried the request out.
    ``refused``: no connection was made. ``wrong_answer``: one came that is not this request's."""

    def __init__(
        self, message: str, *, definite: bool, refused: bool = False, wrong_answer: bool = False
    ) -> None:
        super().__init__(message)
        self.definite = definite
        self.refused = refused
        self.wrong_answer = wrong_answer


def no_time_left(worker: str, *, definite: bool) -> AttemptFailed:
    return AttemptFailed(f"{worker}: no time left", definite=definite)


def no_connection(worker: str, error: object) -> AttemptFailed:
    return AttemptFailed(f"{worker}: no connection: {error}", definite=True, refused=True)


def ended_early(worker: str) -> AttemptFailed:
    return AttemptFailed(
        f"{worker}: the connection ended before the answer was whole", definite=False
    )


class AnswerReader:
    """Reads the answer to the request with ``number`` from the pieces in which it arrives."""

    def __init__(self, worker: str, number: bytes) -> None:
        self._worker = worker
        self._number = number
        self._parser = httptools.HttpResponseParser(self)
        self._content = bytearray()
        self._status = 0
        self._answered: bytes | None = None
        """The number of the request that the worker answers; None when it does not say."""
        self._history: str | None = None
        self._more_came = False
        """Whether another answer has begun behind this one: two processes use the connection, or
        its peer has lost count."""
        self.has_head = False
        """Whether the head of the answer has come."""
        self.is_complete = False
        self.keeps_alive = False

    def feed(self, piece: bytes) -> None:
        """Raises AttemptFailed for bytes that are no answer."""
        try:
            self._parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise AttemptFailed(
                f"{self._worker}: the answer is not HTTP: {error}", definite=False
            ) from None
        if len(self._content) > ANSWER_BYTES_MAX:
            raise AttemptFailed(
                f"{self._worker}: the answer has more than {ANSWER_BYTES_MAX} bytes",
                definite=False,
            )

    def answer(self) -> Answer:
        """The answer, once it is complete. Raises AttemptFailed for one to another request."""
        self._refuse_other()
        return Answer(self._status, bytes(self._content), self._history)

    @property
    def begins_stream(self) -> bool:
        """Whether the head of an answer 200 has come."""
        return self.has_head and self._parser.get_status_code() == 200

    def head(self) -> Answer:
        """The answer without its content, once its head has come. Raises AttemptFailed for one to
        another request."""
        self._refuse_other()
        return Answer(self._parser.get_status_code(), b"", self._history)

    def taken(self) -> bytes:
        """The content that has come since the last call."""
        content = bytes(self._content)
        self._content.clear()
        return content

    def _refuse_other(self) -> None:
        if self._answered not in (None, self._number) or self._more_came:
            raise AttemptFailed(
                f"{self._worker}: an answer came that is not one to this request",
                definite=False,
                wrong_answer=True,
            )

    # --- callbacks of the parser ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._more_came = self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == _NUMBER_HEADER:
            self._answered = value
        elif name == _HISTORY_HEADER:
            self._history = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = self._parser.get_status_code() >= 200

    def on_body(self, piece: bytes) -> None:
        self._content += piece

    def on_message_complete(self) -> None:
        # 100 Continue and its like come before the answer.
        self._status = self._parser.get_status_code()
        self.is_complete = self._status >= 200
        # Asked here: once the message is over, the parser says no, for any head.
        self.keeps_alive = self._parser.should_keep_alive()
