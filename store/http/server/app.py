"""The worker's ASGI application: puts and queries of indexes in front, everything else through
Litestar, one form of error for all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, cast

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from prometheus_client.registry import Collector

from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import (
    CellfeedError,
    OtherHistory,
    Overloaded,
)
from cellfeed.store.http.messages import HISTORY, REQUEST_NUMBER, REQUEST_NUMBER_BYTES_MAX
from cellfeed.store.http.server.asgi import (
    App,
    PeerGone,
    Receive,
    Scope,
    Send,
    header,
    refuse_foreign_host,
)
from cellfeed.store.http.server.audited import answered
from cellfeed.store.http.server.bodies import BODIES
from cellfeed.store.http.server.callers import CALLER, Callers
from cellfeed.store.http.server.direct import DirectRequests, Handler
from cellfeed.store.http.server.exchange import Exchange, route_name
from cellfeed.store.http.server.follow import FollowRoute
from cellfeed.store.http.server.framework_errors import answer_error, as_error
from cellfeed.store.http.server.handlers import NegotiatedResponse
from cellfeed.store.http.server.health import OPERATION_ROUTES
from cellfeed.store.http.server.index_query import IndexQueryRoute
from cellfeed.store.http.server.metered import admitted
from cellfeed.store.http.server.metrics import WorkerMetrics
from cellfeed.store.http.server.misdirected import BARE_PATH, refuse_misdirected
from cellfeed.store.http.server.openapi import openapi_config
from cellfeed.store.http.server.puts import PutRoutes
from cellfeed.store.http.server.quota_metrics import QuotaMetrics
from cellfeed.store.http.server.read_pool import FILE_READ_THREADS, READ_THREADS, ReadPool
from cellfeed.store.http.server.reads import READ_GUARDS, READ_ROUTES
from cellfeed.store.http.server.responses import as_put_error, send_content, send_error
from cellfeed.store.http.server.wait import WAIT_THREADS, wait
from cellfeed.store.http.server.wakeups import WakeupRoute
from cellfeed.store.http.server.writer_metrics import WriterMetrics
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.authority import Authority
from cellfeed.store.security.peer_limits import Quota
from cellfeed.store.security.quotas import Quotas

LIVE_PATH: Final = "/livez"
"""Answered to anybody: the process runs. Where credentials are asked for, it says nothing else."""

REQUESTS_MAX: Final = 1_000
"""Requests being answered at once, besides those whose body is still coming. Past that a request is
refused as ``overloaded``: nothing of it was carried out."""

_REQUEST_NUMBER: Final = REQUEST_NUMBER.encode()
_HISTORY: Final = HISTORY.encode()
_log: Final = logging.getLogger("cellfeed.worker")


class WorkerApp:
    """ASGI. ``closing`` is set by the server when it begins to end: streams then stop after the
    cells that they have read. ``collectors``: more for its metrics. ``callers``: the rights of
    senders; without them everybody may do everything. ``audit`` gets a line of each request.
    ``quotas``: by principal."""

    def __init__(
        self,
        datastore: Datastore,
        collectors: Sequence[Collector] = (),
        callers: Callers | None = None,
        audit: AuditLog | None = None,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        self._audit = audit
        self._quotas = Quotas(quotas)
        self.callers = callers or Callers(
            datastore.name, Authority(datastore.state), required=False
        )
        self.closing = asyncio.Event()
        self.wakeups = WakeupRoute(datastore, self.closing, self.callers)
        writers = WriterMetrics(datastore.writer_tallies)
        throttled = QuotaMetrics(self._quotas)
        collectors = [*collectors, self.wakeups.metrics, writers, throttled]
        self.metrics = WorkerMetrics(datastore.engine, collectors)
        reads_files = isinstance(datastore.engine, SqliteEngine)
        self._reads = ReadPool(
            FILE_READ_THREADS if reads_files else READ_THREADS, in_turns=reads_files
        )
        self._wait_looks = ReadPool(WAIT_THREADS)
        self._name = datastore.name
        self._history = datastore.history_id.encode()
        puts = PutRoutes(datastore, self.metrics, self.closing, self.callers)
        follow = FollowRoute(datastore, self._reads, self.closing, self.callers)
        base = f"/v1/{datastore.name}"
        self._bare_posts: dict[str, tuple[str, App]] = {
            f"{base}/cell": ("put_one", puts.put_one),
            f"{base}/cells": ("put_many", puts.put_many),
            f"{base}/follow": ("follow", follow.follow),
            f"{base}/wakeups": ("wakeups", self.wakeups.follow),
        }
        self._index_paths = f"{base}/indexes/"
        queries = IndexQueryRoute(datastore, self._reads)
        self._query: tuple[str, App] = "query_index", queries.query
        put_path, query_path = f"{base}/cell".encode(), f"{base}/indexes/".encode()

        def direct(path: bytes) -> tuple[str, Handler] | None:
            if path == put_path:
                return "put_one", puts.put_directly
            if path.startswith(query_path) and BARE_PATH.fullmatch(path.decode()):
                return "query_index", queries.directly(path.decode())
            return None

        self.direct = DirectRequests(
            direct, self._history, self.metrics, REQUESTS_MAX, self.callers, audit, self._quotas
        )
        self._litestar = Litestar(
            [*READ_ROUTES, wait, *OPERATION_ROUTES],
            guards=list(READ_GUARDS),
            response_class=NegotiatedResponse,
            exception_handlers={
                CellfeedError: answer_error,
                HTTPException: answer_error,
                Exception: answer_error,
            },
            openapi_config=openapi_config(),
            state=State(
                {
                    "datastore": datastore,
                    "reads": self._reads,
                    "metrics": self.metrics,
                    "wait_looks": self._wait_looks,
                    "closing": self.closing,
                    "callers": self.callers,
                    "audit": audit,
                }
            ),
            logging_config=None,
        )

    def close(self) -> None:
        """Ends the read threads."""
        self._reads.close()
        self._wait_looks.close()
        self.callers.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._litestar(scope, receive, send)  # type: ignore[arg-type]
            return
        if scope["path"] == LIVE_PATH and self.callers.required:
            await send_content(send, 200, b"live", "text/plain")
            return
        route, handler = (self._bare(scope["path"]) if scope["method"] == "POST" else None) or (
            "read",
            cast("App", self._litestar),
        )
        number = header(scope, _REQUEST_NUMBER)
        headers = [(_HISTORY, self._history)] if self._history else []
        if 0 < len(number) <= REQUEST_NUMBER_BYTES_MAX:
            headers.append((_REQUEST_NUMBER, number))
        exchange = Exchange(receive, send, headers)
        self.metrics.in_flight += 1
        try:
            if self.metrics.in_flight - len(BODIES) > REQUESTS_MAX:
                raise Overloaded(
                    f"{REQUESTS_MAX} requests are being answered, which is the most allowed; try"
                    " again shortly"
                )
            if not self.callers.required:
                refuse_foreign_host(scope)
            scope[CALLER] = await self.callers.of(scope)
            ways = admitted(self._quotas, scope, route, exchange.receive, exchange.send)
            if route == "read":
                refuse_misdirected(scope["path"], scope["method"], self._name)
            known = header(scope, _HISTORY)
            if known and self._history and known != self._history:
                wanted = known.decode("latin-1")
                raise OtherHistory(
                    f"this worker serves history {self._history.decode()} of datastore"
                    f" {self._name!r}, and the request is for {ascii(wanted)[:80]}: it is another"
                    " store, or this one was restored; if that is meant, make a new client"
                )
            await handler(scope, *ways)
        except PeerGone:
            # The number that nginx made usual for this; nobody is left to be sent one.
            exchange.status = 499
        except Exception as problem:
            if not isinstance(problem, CellfeedError):
                _log.exception("a %s request failed", route)
            if exchange.status:
                raise  # an answer has begun: only cutting the connection says that it is not whole
            await send_error(
                exchange.send,
                scope,
                (
                    as_put_error(problem)
                    if route in ("put_one", "put_many")
                    else as_error(problem, scope)
                ),
            )
        finally:
            self.metrics.in_flight -= 1
            self.metrics.answered(
                route_name(route, scope),
                exchange.status,
                exchange.seconds,
                exchange.received,
                exchange.sent,
            )
            answered(self._audit, scope, route, exchange.status)

    def _bare(self, path: str) -> tuple[str, App] | None:
        """The route of a POST that is answered without Litestar, and its name in the metrics."""
        if (found := self._bare_posts.get(path)) is not None:
            return found
        return (
            self._query
            if path.startswith(self._index_paths) and BARE_PATH.fullmatch(path)
            else None
        )
