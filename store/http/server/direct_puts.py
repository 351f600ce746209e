"""Single puts that are answered on their connection, without a task and in one write.

Most requests to a worker are single puts, and through the server's own layers each costs more than
the put itself. So a connection first asks :meth:`DirectPuts.take` with the bytes that came. It
takes the usual put alone (:mod:`cellfeed.store.http.server.usual_puts`); all else goes the way of
every request. The two ways share the group commit, its deadline, the limit of requests under way
and the metrics.

What happens to a put that was taken is what :mod:`cellfeed.store.http.server.puts` says. The answer
is one piece of bytes. A connection takes nothing more until it has written it
(:mod:`cellfeed.store.http.server.connections`), so answers keep the order of requests.

An error while a put is taken leaves the request to the other way, which may write the same cell
again: puts are idempotent.
"""

from __future__ import annotations

import http
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from cellfeed.store.commit.put_answers import PutAnswer
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.messages import HISTORY, JSON, REQUEST_NUMBER
from cellfeed.store.http.server.commits import LoopCommits
from cellfeed.store.http.server.metrics import WorkerMetrics
from cellfeed.store.http.server.responses import as_put_error, encoded
from cellfeed.store.http.server.usual_puts import UsualHeads

_JSON: Final = JSON.encode()
_NUMBER: Final = REQUEST_NUMBER.encode()
_PHRASES: Final = {each.value: each.phrase.encode() for each in http.HTTPStatus}
_log: Final = logging.getLogger("cellfeed.worker")


class PutConnection(Protocol):
    """The connection that a put came on."""

    @property
    def ends(self) -> bool:
        """Whether it closes behind the answer."""

    def put_answered(self, answer: bytes) -> None:
        """Sends the answer. Called once for each put that was taken."""


class DirectPuts:
    """Puts to ``/v1/{name}/cell``. ``commits`` gives those of the running loop."""

    def __init__(
        self,
        name: str,
        history: bytes,
        commits: Callable[[], LoopCommits],
        metrics: WorkerMetrics,
        in_flight_max: int,
    ) -> None:
        self._request_line = b"POST /v1/%b/cell HTTP/1.1\r\n" % name.encode()
        self._history = history
        self._history_field = b"%b: %b\r\n" % (HISTORY.encode(), history) if history else b""
        self._commits = commits
        self._metrics = metrics
        self._in_flight_max = in_flight_max

    def heads(self) -> UsualHeads:
        """For a connection, to be given back with each call."""
        return UsualHeads(self._request_line, self._history)

    def take(self, data: bytes, heads: UsualHeads, connection: PutConnection) -> bool:
        """Whether ``data`` is a put that ``connection`` gets an answer for."""
        if self._metrics.in_flight >= self._in_flight_max:
            return False
        put = heads.put(data)
        if put is None:
            return False
        started = time.perf_counter()

        def committed(answer: PutAnswer | CellfeedError) -> None:
            self._answer(connection, put.number, started, answer)

        try:
            self._commits().put_then([put.cell], committed)
        except Exception:
            return False  # the other way meets the same, and says it
        self._metrics.in_flight += 1
        return True

    def _answer(
        self,
        connection: PutConnection,
        number: bytes,
        started: float,
        answer: PutAnswer | CellfeedError,
    ) -> None:
        status, content = 200, b""
        try:
            if isinstance(answer, CellfeedError):
                raise answer
            [result] = answer.result(0)
            self._metrics.put((result,), time.perf_counter() - started)
            content = encoded(result.or_raise(), msgpack=False)
        except Exception as problem:
            if not isinstance(problem, CellfeedError):
                _log.exception("a put_one request failed")
            error = as_put_error(problem)
            status, content = error.http_status, encoded(error, msgpack=False)
        finally:
            self._metrics.in_flight -= 1
            self._metrics.answered("put_one", status)
        connection.put_answered(
            b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b%b\r\n%b"
            % (
                status,
                _PHRASES[status],
                _JSON,
                len(content),
                self._history_field,
                b"%b: %b\r\n" % (_NUMBER, number) if number else b"",
                b"connection: close\r\n" if connection.ends else b"",
                content,
            )
        )
