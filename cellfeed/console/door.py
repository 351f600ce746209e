"""Lets requests of the console in, by a session or by credentials. A loopback port that asks for
none takes every peer of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

from litestar import Request
from litestar.response import Redirect, Response

from cellfeed.console.attempts import FailedLogins
from cellfeed.console.sessions import Sessions
from cellfeed.store.errors import CellfeedError, Unauthenticated
from cellfeed.store.http.server.asgi import refuse_foreign_host
from cellfeed.store.http.server.audited import address_of, object_of
from cellfeed.store.http.server.callers import CALLER, SUBJECT, Callers
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.callers import TRUSTED, Caller

LOGIN: Final = "/login"
_FREE: Final = ("/static/", LOGIN)
"""Paths that need no log-in."""

_CELLS: Final = ("/log", "/row", "/parked", "/query")
"""Pages that show cells: each visit is a line of the audit log. Others are counted."""

NEXT_CHARACTERS_MAX: Final = 2_000


class Cookies(NamedTuple):
    """Names of the console's cookies: by its history, because a browser sends cookies to every port
    of a host. ``secure``: over TLS alone."""

    session: str
    login: str
    csrf: str
    secure: bool


class Door:
    """Of one console. Used on the event loop, :meth:`audited` by any thread."""

    def __init__(
        self, callers: Callers, sessions: Sessions, audit: AuditLog | None, cookies: Cookies
    ) -> None:
        self.callers = callers
        self.sessions = sessions
        self.cookies = cookies
        self.failed = FailedLogins()
        self.audit = audit

    async def let_in(self, request: Request[Any, Any, Any]) -> Response[Any] | None:
        """Puts the caller into the scope; or answers a request without a session with the way to
        the log-in. Raises Unauthenticated, InvalidRequest."""
        scope: Any = request.scope
        if not self.callers.required:
            # A web page that points its own name here must not read cells, nor send forms.
            refuse_foreign_host(scope)
        path = scope["path"]
        if path.startswith(_FREE):
            return None
        try:
            scope[CALLER] = await self._caller(request)
        except Unauthenticated:
            if request.method != "GET" or path in ("/metrics", "/changes"):
                raise
            return self._to_login(request)
        self._note(scope, request)
        return None

    async def _caller(self, request: Request[Any, Any, Any]) -> Caller:
        scope: Any = request.scope
        cookie = request.cookies.get(self.cookies.session)
        has_credentials = "authorization" in request.headers or scope.get(SUBJECT) is not None
        if self.callers.required and cookie and not has_credentials:
            return self.sessions.caller(cookie)
        return await self.callers.of(scope)

    def _to_login(self, request: Request[Any, Any, Any]) -> Response[Any]:
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        there = f"{LOGIN}?next={quote(wanted[:NEXT_CHARACTERS_MAX], safe='')}"
        if request.headers.get("hx-request"):  # a script would put the log-in into the page
            return Response(b"", status_code=401, headers={"HX-Redirect": there})
        return Redirect(there, status_code=303)

    def _note(self, scope: Any, request: Request[Any, Any, Any]) -> None:
        if self.audit is None or request.method != "GET":
            return
        caller, path = scope[CALLER], scope["path"]
        if path.startswith(_CELLS) and not request.headers.get("hx-request"):
            self.audit.record(
                caller.principal,
                "GET",
                object_of(scope),
                how=caller.how,
                address=address_of(scope),
                result="shown",
            )
        else:
            self.audit.count(caller.principal, "GET " + path.partition("/")[2][:40], "shown")

    @contextmanager
    def audited(self, request: Request[Any, Any, Any], did: str, to: str) -> Iterator[None]:
        """An act: its line is written before it is done, and another one with its result. Raises
        StorageUnavailable when the first one cannot be written: then nothing must be done."""
        if self.audit is None:
            yield
            return
        scope: Any = request.scope
        caller = scope[CALLER]
        said = {"how": caller.how, "address": address_of(scope)}
        self.audit.before(caller.principal, did, to, **said)
        result = "failed"
        try:
            yield
            result = "done"
        except CellfeedError as error:
            result = type(error).__name__
            raise
        finally:
            self.audit.record(caller.principal, did, to, result=result, **said)


def caller_of_request(request: Request[Any, Any, Any]) -> Caller:
    """The caller of a request that was let in."""
    scope: Any = request.scope
    caller = scope[CALLER]
    assert isinstance(caller, Caller)  # noqa: S101 (for the type checker)
    return caller


Visitor = Annotated[Caller, "dependency"]
"""A handler's parameter ``caller``. Litestar wants a dependency marked, by anything."""


def is_signed_in(caller: Caller) -> bool:
    """Whether the caller came by credentials."""
    return caller is not TRUSTED


def local_path(text: str) -> str:
    """``text`` where it is a path of this console, else ``/``: a link to the log-in must lead
    nowhere else."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\", LOGIN))
    return text if is_local and text.isprintable() and len(text) <= NEXT_CHARACTERS_MAX else "/"
