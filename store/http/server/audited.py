"""Requests of HTTP in the audit log (:mod:`cellfeed.store.security.audit`)."""

from __future__ import annotations

from typing import Final

from cellfeed.store.http.messages import REQUEST_NUMBER, REQUEST_NUMBER_BYTES_MAX
from cellfeed.store.http.server.asgi import Scope, header
from cellfeed.store.http.server.callers import CALLER
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.tokens import without_secrets

CELLS: Final = "cellfeed.cells"
"""Key of a request's scope: the number of cells that it put."""

_NUMBER: Final = REQUEST_NUMBER.encode()
NOBODY: Final = "-"


def answered(audit: AuditLog | None, scope: Scope, route: str, status: int) -> None:
    """Writes the line of a request, or counts it: a put, or one that nobody was let in with."""
    if audit is None:
        return
    caller = scope.get(CALLER)
    if caller is None:
        audit.count(NOBODY, "request", str(status))
    elif route in ("put_one", "put_many"):
        audit.count(caller.principal, "put", str(status), scope.get(CELLS, 0))
    else:
        audit.record(
            caller.principal,
            scope["method"],
            object_of(scope),
            how=caller.how,
            request=number_of(scope),
            result=str(status),
            address=address_of(scope),
        )


def object_of(scope: Scope) -> str:
    """The path and the query of a request."""
    query = scope.get("query_string", b"").decode("latin-1")
    return without_secrets(f"{scope['path']}?{query}" if query else scope["path"])


def number_of(scope: Scope) -> str:
    """The id that the client gave the request."""
    return header(scope, _NUMBER)[:REQUEST_NUMBER_BYTES_MAX].decode("latin-1")


def address_of(scope: Scope) -> str:
    """The peer's."""
    peer = scope.get("client")
    return str(peer[0]) if peer else ""
