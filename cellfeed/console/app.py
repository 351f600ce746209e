"""The console's ASGI application: pages, forms, static files, and a stream that says when the
status changed."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Litestar, Request, get
from litestar.config.csrf import CSRFConfig
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.response import Response, ServerSentEvent, Template
from litestar.response.sse import ServerSentEventMessage
from litestar.static_files import create_static_files_router
from litestar.template import TemplateConfig
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from cellfeed.assembly.datastore import Opened
from cellfeed.console.changes import CHANGES
from cellfeed.console.door import Door, Visitor, caller_of_request, is_signed_in
from cellfeed.console.filters import FILTERS
from cellfeed.console.frame import ConsoleState, Streams
from cellfeed.console.group_pages import GROUP_PAGES
from cellfeed.console.login import LOGINS
from cellfeed.console.metrics import StatusMetrics
from cellfeed.console.pages import PAGES
from cellfeed.console.query.pages import QUERY_PAGES
from cellfeed.console.query.tables import SqlTables
from cellfeed.console.token_pages import TOKEN_PAGES
from cellfeed.status.looks import Looks
from cellfeed.status.newest_of_many import NewestCells
from cellfeed.store.errors import CellfeedError, Overloaded, Unauthenticated
from cellfeed.store.http.server.metrics import METRICS_MEDIA_TYPE
from cellfeed.store.http.server.worker import StopSignal
from cellfeed.store.security.callers import Caller

if TYPE_CHECKING:
    from cellfeed.console.oidc import Provider

STREAMS_MAX: Final = 64
"""Open pages that follow changes at once."""

FORM_BYTES_MAX: Final = 16 << 10
"""A form has two names and a reason."""

QUIET_S: Final = 15.0
"""How long a stream may be silent: by a word on it a peer that is gone is found."""

_STOP_LOOK_S: Final = 0.1
"""How often a stream looks for a new look, and whether the console is to end."""

_HERE: Final = Path(__file__).parent
_log: Final = logging.getLogger("cellfeed.console")

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def console_app(
    instance: Opened,
    looks: Looks,
    stop: StopSignal,
    door: Door,
    tables: SqlTables,
    provider: Provider | None = None,
) -> Litestar:
    """The application over an open instance. Forms of another life of it are refused: their token
    is drawn at the start."""
    templates = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined
    )
    templates.filters.update(FILTERS)
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(StatusMetrics(looks))
    return Litestar(
        [
            *PAGES,
            *GROUP_PAGES,
            *CHANGES,
            *QUERY_PAGES,
            *TOKEN_PAGES,
            *LOGINS,
            changes,
            metrics,
            create_static_files_router("/static", [_HERE / "static"], cache_control=None),
        ],
        state=State(
            {
                "instance": instance,
                "looks": looks,
                "newest": NewestCells(instance.datastore),
                "registry": registry,
                "stop": stop,
                "streams": Streams(),
                "door": door,
                "tables": tables,
                "provider": provider,
            }
        ),
        template_config=TemplateConfig(instance=JinjaTemplateEngine(engine_instance=templates)),
        csrf_config=CSRFConfig(
            secret=secrets.token_hex(32),
            cookie_name=door.cookies.csrf,
            cookie_httponly=True,
            cookie_samesite="strict",
            cookie_secure=door.cookies.secure,
        ),
        dependencies={"caller": Provide(caller_of_request, sync_to_thread=False)},
        before_request=door.let_in,
        after_request=_add_headers,
        exception_handlers={Exception: _answer_error},
        request_max_body_size=FORM_BYTES_MAX,
        openapi_config=None,
        logging_config=None,
    )


@get("/metrics", sync_to_thread=True, media_type=METRICS_MEDIA_TYPE)
def metrics(state: ConsoleState, caller: Visitor) -> bytes:
    """The parts that stand still, for Prometheus."""
    caller.check_datastore("describe")
    return generate_latest(state.registry)


@get("/changes")
async def changes(
    request: Request[Any, Any, Any], state: ConsoleState, caller: Visitor
) -> ServerSentEvent:
    """An event ``look`` whenever the status was read again, for as long as the page is open."""
    if state.streams.count >= STREAMS_MAX:
        raise Overloaded(f"{STREAMS_MAX} pages are open already; close some, or reload by hand")
    return ServerSentEvent(
        _looks(state, caller, request.cookies.get(state.door.cookies.session, ""))
    )


def _still_in(state: ConsoleState, caller: Caller, cookie: str) -> bool:
    """Whether the session of an open page has not ended."""
    try:
        if cookie and is_signed_in(caller):
            state.door.sessions.caller(cookie, is_request=False)
        else:
            state.door.callers.current(caller)
    except CellfeedError:
        return False
    return True


async def _looks(
    state: ConsoleState, caller: Caller, cookie: str
) -> AsyncIterator[ServerSentEventMessage]:
    state.streams.count += 1
    try:
        seen, said_s = 0, time.monotonic()
        # An open page keeps no console from ending, and a session that ended no page.
        while not state.stop.is_set() and _still_in(state, caller, cookie):
            look = state.looks.latest(wait=False)
            if look.number != seen:
                seen, said_s = look.number, time.monotonic()
                yield ServerSentEventMessage(data=str(seen), event="look")
            elif time.monotonic() - said_s > QUIET_S:
                said_s = time.monotonic()
                yield ServerSentEventMessage(comment="no change")
            await asyncio.sleep(_STOP_LOOK_S)
    finally:
        state.streams.count -= 1


def _add_headers(response: Response[Any]) -> Response[Any]:
    response.headers.update(SECURITY_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _answer_error(request: Request[Any, Any, Any], problem: Exception) -> Response[Any]:
    if isinstance(problem, CellfeedError):
        status, text = problem.http_status, str(problem)
    elif isinstance(problem, HTTPException) and problem.status_code < 500:
        status, text = problem.status_code, problem.detail
    else:
        _log.error("%s %s failed", request.method, request.scope["path"], exc_info=problem)
        status, text = 500, f"{type(problem).__name__}: the console's log has the trace"
    return Template(
        "error.html",
        context={
            "title": f"Error {status}",
            "text": text,
            "status": status,
            "is_login": status == Unauthenticated.http_status,
        },
        status_code=status,
        headers=SECURITY_HEADERS,
    )
