"""Requests that are answered on their connection, without a task and in one write.

Most requests to a worker are single puts and queries of an index. Through the server's own layers
each costs more than its work in the store. So a connection first asks :meth:`DirectRequests.take`
with the bytes that came. It takes usual requests alone
(:mod:`cellfeed.store.http.server.usual_requests`); all else goes the way of every request. The two
ways share the group commit, the read threads, the deadlines, the limit of requests under way and
the metrics.

Requests have the outcomes that :mod:`cellfeed.store.http.server.puts` and
:mod:`cellfeed.store.http.server.index_query` describe. The answer is one piece of bytes. A
connection takes nothing more until it has written it
(:mod:`cellfeed.store.http.server.connections`), so answers keep the order of requests.

A handler that does not take a request leaves it to the other way, also where it failed half-way: a
put may be written twice, which changes nothing, for puts are idempotent.
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable
from typing import Final, Protocol

from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.messages import HISTORY, JSON, REQUEST_NUMBER
from cellfeed.store.http.server.callers import Callers
from cellfeed.store.http.server.metered import PUTS
from cellfeed.store.http.server.metrics import WorkerMetrics
from cellfeed.store.http.server.responses import encoded
from cellfeed.store.http.server.usual_requests import UsualHeads, UsualRequest
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.callers import Caller
from cellfeed.store.security.quotas import Quotas

_JSON: Final = JSON.encode()
_NUMBER: Final = REQUEST_NUMBER.encode()
_PHRASES: Final = {each.value: each.phrase.encode() for each in http.HTTPStatus}

Respond = Callable[[bytes | CellfeedError], None]
"""Takes the answer: JSON, or the error. Called once for each request that was taken, in the loop's
thread, never before the handler has returned."""

Handler = Callable[[bytes, Respond, Caller], bool]
"""Begins to answer a request with that content and caller; False where it does not take it."""

FindHandler = Callable[[bytes], tuple[str, Handler] | None]
"""By path: the name in the metrics, and the handler."""


class DirectConnection(Protocol):
    """The connection that a request came on."""

    @property
    def ends(self) -> bool:
        """Whether it closes behind the answer."""

    def answered(self, answer: bytes) -> None:
        """Sends the answer. Called once for each request that was taken."""


class DirectRequests:
    """See the module. ``history``: the worker's."""

    def __init__(
        self,
        find: FindHandler,
        history: bytes,
        metrics: WorkerMetrics,
        in_flight_max: int,
        callers: Callers,
        audit: AuditLog | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._audit = audit
        self._quotas = quotas or Quotas()
        self._find = find
        self._callers = callers
        self._history = history
        self._history_field = b"%b: %b\r\n" % (HISTORY.encode(), history) if history else b""
        self._metrics = metrics
        self._in_flight_max = in_flight_max

    def heads(self, subject: str | None) -> UsualHeads:
        """For a connection whose peer has a certificate of that subject, to be given back with each
        call."""
        return UsualHeads(
            lambda path: self._find(path) is not None, self._history, self._callers, subject
        )

    def take(self, data: bytes, heads: UsualHeads, connection: DirectConnection) -> bool:
        """Whether ``data`` is a request that ``connection`` gets an answer for."""
        if self._metrics.in_flight >= self._in_flight_max:
            return False
        request = heads.request(data)
        if request is None or (found := self._find(request.path)) is None:
            return False
        route, handler = found
        principal = request.caller.principal
        if self._quotas.debt_s(principal) > 0:
            return False
        began_s = time.perf_counter()

        def respond(answer: bytes | CellfeedError) -> None:
            status, content = 200, answer
            if isinstance(content, CellfeedError):
                status, content = content.http_status, encoded(content, msgpack=False)
            self._metrics.in_flight -= 1
            self._metrics.answered(
                route, status, time.perf_counter() - began_s, len(request.content), len(content)
            )
            self._audited(route, status, request)
            if route not in PUTS:
                self._quotas.spend(principal, read_bytes=len(content))
            connection.answered(self._whole(status, content, request.number, connection.ends))

        if not handler(request.content, respond, request.caller):
            return False
        self._metrics.in_flight += 1
        put_bytes = len(request.content) if route in PUTS else 0
        self._quotas.spend(principal, requests=1, put_bytes=put_bytes)
        return True

    def _audited(self, route: str, status: int, request: UsualRequest) -> None:
        if self._audit is None:
            return
        caller, result = request.caller, str(status)
        if route == "put_one":
            self._audit.count(caller.principal, "put", result, 1)
        else:
            path, number = request.path.decode(), request.number.decode()
            self._audit.record(
                caller.principal, "POST", path, how=caller.how, request=number, result=result
            )

    def _whole(self, status: int, content: bytes, number: bytes, ends: bool) -> bytes:
        return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b%b\r\n%b" % (
            status,
            _PHRASES[status],
            _JSON,
            len(content),
            self._history_field,
            b"%b: %b\r\n" % (_NUMBER, number) if number else b"",
            b"connection: close\r\n" if ends else b"",
            content,
        )
