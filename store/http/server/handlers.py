"""The common parts of the Litestar handlers: their parameters, the datastore, a request's message,
an answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from litestar import Request
from litestar.datastructures import State
from litestar.params import Parameter
from litestar.response import Response
from litestar.response.base import ASGIResponse

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import UnknownDatastore
from cellfeed.store.http.messages import JSON, MSGPACK
from cellfeed.store.http.server.asgi import Receive, Scope
from cellfeed.store.http.server.bodies import read_body
from cellfeed.store.http.server.documents import Message, message_from
from cellfeed.store.http.server.read_pool import ReadPool
from cellfeed.store.http.server.responses import encoded, media_type_of, wants_msgpack
from cellfeed.store.limits import COLUMN_NAME_BYTES_MAX, HTTP_BODY_BYTES_MAX, SCAN_CELLS_MAX
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.tokens import without_secrets

RowKey = Annotated[str, Parameter(description="A UUID as text.")]

Column = Annotated[
    str, Parameter(description=f"A column name, 1 to {COLUMN_NAME_BYTES_MAX} bytes of UTF-8.")
]

Ref = Annotated[int, Parameter(description="A signed 64-bit integer.")]

ReadFromParameter = Annotated[
    Literal["master", "minion"],
    Parameter(
        description=(
            "Where the read goes first; cells from a minion are `stale`: a later cell may not"
            " have arrived there."
        )
    ),
]

From = Annotated[
    str,
    Parameter(description="The next added_id to read, or an RFC 3339 timestamp with a time zone."),
]

Limit = Annotated[int, Parameter(description=f"At most so many cells, 1 to {SCAN_CELLS_MAX}.")]

Name = Annotated[str, Parameter(description="The datastore's name.")]

Shard = Annotated[int, Parameter(description="A shard number, from 0.")]


class ReadState(State):
    """The shared state of the handlers: set once by the app."""

    datastore: Datastore
    reads: ReadPool
    audit: AuditLog | None


class NegotiatedResponse(Response[Any]):
    """JSON, or MessagePack for a caller that accepts that alone."""

    def to_asgi_response(
        self, app: Any, request: Request[Any, Any, Any], **settings: Any
    ) -> ASGIResponse:
        if isinstance(self.content, bytes):  # the schema pages, which are bytes of their own type
            return super().to_asgi_response(app, request, **settings)
        msgpack = wants_msgpack(plain_scope(request))
        self.content = encoded(self.content, msgpack=msgpack)
        self.media_type = MSGPACK if msgpack else JSON
        return super().to_asgi_response(app, request, **settings)


def known_datastore(state: ReadState, name: str) -> Datastore:
    """The worker's datastore, when that is the one asked for. Raises UnknownDatastore."""
    if name != state.datastore.name:
        raise UnknownDatastore(
            f"datastore {without_secrets(ascii(name)[:80])} is not served here; this worker serves"
            f" {state.datastore.name!r}"
        )
    return state.datastore


def plain_scope(request: Request[Any, Any, Any]) -> Scope:
    """The ASGI scope under Litestar's request."""
    return cast("Scope", request.scope)


async def message_of(request: Request[Any, Any, Any], kind: type[Message]) -> Message:
    """The body of a request. Raises InvalidRequest."""
    scope = plain_scope(request)
    media_type = media_type_of(scope)
    receive = cast("Receive", request.receive)
    return message_from(await read_body(scope, receive, HTTP_BODY_BYTES_MAX), media_type, kind)
