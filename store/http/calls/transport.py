"""HTTP/1.1 under the client: kept connections, one deadline over everything, and what is known of a
request that failed.

A request has one absolute deadline. Before each wait the socket is given the time that is left, so
a peer that sends a byte now and then cannot stretch it. (A standard HTTP client starts its time-out
again at each byte.) httptools parses the answers.

Every request carries a random number, which the worker repeats in its answer: an answer with
another number is somebody else's. A worker of an earlier version repeats none. After a ``fork()``
the child makes connections of its own: on a shared one each side would read the other's answers.
"""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httptools

from cellfeed.store import forks
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.http.messages import HISTORY, REQUEST_NUMBER

_RECV_BYTES: Final = 1 << 16
ANSWER_BYTES_MAX: Final = 256 << 20
"""One answer: a log scan of many shards is the largest. A peer that sends without end costs an
error, not the memory."""

CONNECTIONS_KEPT_MAX: Final = 64
"""Idle connections kept per worker: as many as callers are likely to wait at once."""

_NUMBER_HEADER: Final = REQUEST_NUMBER.encode()
_HISTORY_HEADER: Final = HISTORY.encode()

IDLE_S_MAX: Final = 60.0
"""Idle connections older than this are not used again: the worker closes them after 75 s, and would
race with a request."""


class Answer(NamedTuple):
    """One whole answer."""

    status: int
    content: bytes
    history: str | None = None
    """Which history the worker serves; None when it does not say."""


class AttemptFailed(Exception):
    """One attempt had no answer. ``definite``: the worker cannot have carried the request out.
    ``wrong_answer``: one came that is not this request's."""

    def __init__(
        self, message: str, *, definite: bool, refused: bool = False, wrong_answer: bool = False
    ) -> None:
        super().__init__(message)
        self.definite = definite
        self.refused = refused
        self.wrong_answer = wrong_answer


class Worker:
    """One worker's address and the idle connections to it. Any number of threads may use it,
    without a lock: a child may be forked while one is held."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if (
            parts.scheme != "http"
            or not parts.hostname
            or parts.path not in ("", "/")
            or parts.query
        ):
            raise InvalidRequest(
                f"worker address {ascii(url)[:200]} must be of the form http://host:port"
            )
        try:
            self.host, self.port = parts.hostname, parts.port or 80
        except ValueError as error:
            raise InvalidRequest(f"worker address {ascii(url)[:200]}: {error}") from None
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.name = f"{shown}:{self.port}"
        self.trusted_again_at = 0.0
        """Monotonic time until which this worker is tried last, because it refused a connection or
        said that it cannot."""
        self._own: tuple[int, list[_Connection]] = forks.generation, []

    def request(
        self,
        method: str,
        target: str,
        content: bytes,
        media_type: str,
        deadline: float,
        history: str | None = None,
    ) -> Answer:
        """One attempt, for a worker that serves ``history``. Raises AttemptFailed, at ``deadline``
        (monotonic) at the latest."""
        connection = self._take(deadline)
        number = b"%016x" % random.getrandbits(64)
        head = (
            f"{method} {target} HTTP/1.1\r\nhost: {self.name}\r\naccept:"
            f" application/json\r\n{REQUEST_NUMBER}: {number.decode()}\r\n"
        )
        if history is not None:
            head += f"{HISTORY}: {history}\r\n"
        if content:
            head += f"content-type: {media_type}\r\ncontent-length: {len(content)}\r\n"
        try:
            answer = connection.exchange(head.encode("ascii") + b"\r\n" + content, number, deadline)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._give_back(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Closes the idle connections."""
        idle = self._idle()
        while idle:
            with suppress(IndexError):  # another thread has taken the last one
                idle.pop().close()

    def _idle(self) -> list[_Connection]:
        """The idle connections of this process. Those of its parent are closed on this side alone,
        unread, which the parent and the worker do not notice."""
        generation, idle = self._own
        if generation != forks.generation:
            for connection in idle:
                connection.close()
            idle = []
            self._own = forks.generation, idle
        return idle

    def _take(self, deadline: float) -> _Connection:
        idle = self._idle()
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return _connect(self.host, self.port, self.name, deadline)
            if connection.still_open():
                return connection
            connection.close()

    def _give_back(self, connection: _Connection) -> None:
        connection.idle_since = time.monotonic()
        idle = self._idle()
        if len(idle) < CONNECTIONS_KEPT_MAX:
            idle.append(connection)
        else:
            connection.close()


def _connect(host: str, port: int, name: str, deadline: float) -> _Connection:
    try:
        connected = socket.create_connection(
            (host, port), timeout=_left(deadline, name, definite=True)
        )
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise AttemptFailed(
            f"{name}: no connection: {error}", definite=True, refused=True
        ) from None
    return _Connection(connected, name)


class _Connection:
    def __init__(self, connected: socket.socket, name: str) -> None:
        self._socket = connected
        self._name = name
        self.reusable = False
        self.idle_since = 0.0

    def exchange(self, request: bytes, number: bytes, deadline: float) -> Answer:
        """Sends a request and reads the answer with its number."""
        self.reusable = False
        answer = _Answering()
        try:
            self._send(request, deadline)
        except OSError as error:
            # The worker may have answered before it read everything (too large, closing); that
            # answer says more than the broken pipe.
            try:
                self._read(answer, deadline)
            except AttemptFailed:
                raise AttemptFailed(
                    f"{self._name}: cut off while sending: {error}", definite=False
                ) from None
            answer.keeps_alive = False
        else:
            self._read(answer, deadline)
        if answer.number not in (None, number) or answer.more_came:
            raise AttemptFailed(
                f"{self._name}: an answer came that is not one to this request",
                definite=False,
                wrong_answer=True,
            )
        self.reusable = answer.keeps_alive
        return Answer(answer.status, bytes(answer.content), answer.history)

    def still_open(self) -> bool:
        """False when it was idle too long, or the worker closed it (an idle connection has nothing
        to read)."""
        if time.monotonic() - self.idle_since > IDLE_S_MAX:
            return False
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._socket.close()

    def _send(self, request: bytes, deadline: float) -> None:
        # One deadline for the whole of it: sendall counts its time-out over all it sends.
        self._socket.settimeout(_left(deadline, self._name, definite=True))
        self._socket.sendall(request)

    def _read(self, answer: _Answering, deadline: float) -> None:
        while not answer.complete:
            self._socket.settimeout(_left(deadline, self._name, definite=False))
            try:
                piece = self._socket.recv(_RECV_BYTES)
            except OSError as error:
                raise AttemptFailed(f"{self._name}: no answer: {error}", definite=False) from None
            if not piece:
                raise AttemptFailed(
                    f"{self._name}: the connection ended before the answer was whole",
                    definite=False,
                )
            try:
                answer.parser.feed_data(piece)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                raise AttemptFailed(
                    f"{self._name}: the answer is not HTTP: {error}", definite=False
                ) from None
            if len(answer.content) > ANSWER_BYTES_MAX:
                raise AttemptFailed(
                    f"{self._name}: the answer has more than {ANSWER_BYTES_MAX} bytes",
                    definite=False,
                )


class _Answering:
    """An answer as it arrives: callbacks of the parser."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.content = bytearray()
        self.status = 0
        self.complete = False
        self.keeps_alive = False
        self.number: bytes | None = None
        """Of the request that the worker answers; None when it does not say."""
        self.history: str | None = None
        self.more_came = False
        """Whether another answer has begun behind this one: two processes use the connection, or
        its peer has lost count."""

    def on_message_begin(self) -> None:
        self.more_came = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == _NUMBER_HEADER:
            self.number = value
        elif name == _HISTORY_HEADER:
            self.history = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        self.content += piece

    def on_message_complete(self) -> None:
        # 100 Continue and its like come before the answer.
        self.status = self.parser.get_status_code()
        self.complete = self.status >= 200
        # Asked here: once the message is over, the parser says no, whatever its head said.
        self.keeps_alive = self.parser.should_keep_alive()


def _left(deadline: float, name: str, *, definite: bool) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise AttemptFailed(f"{name}: no time left", definite=definite)
    return left
