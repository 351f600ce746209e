"""The OpenAPI 3.1 document at ``/schema/openapi.json`` and a page at ``/schema`` that reads without
any script or network.

Litestar derives the read routes from their handlers. Those of puts and of indexes are bare ASGI
(:mod:`cellfeed.store.http.server.puts`, ``index_query``), and every request body is decoded by
:mod:`cellfeed.store.http.server.requests`; both are described here from the same message types that
the code reads and writes.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any, Final

import msgspec
from litestar import Request
from litestar.enums import OpenAPIMediaType
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import OpenAPIRenderPlugin

from cellfeed.store.http.follow_messages import FollowLine, FollowMessage
from cellfeed.store.http.index_messages import IndexPageMessage, IndexQueryMessage
from cellfeed.store.http.log_messages import ScanShardsMessage
from cellfeed.store.http.messages import (
    ErrorMessage,
    GetCellsMessage,
    GetLatestMessage,
    GetRowsMessage,
    PutMessage,
    PutResultMessage,
    PutResultsMessage,
    PutsMessage,
)
from cellfeed.store.http.server.health import HealthMessage
from cellfeed.store.http.server.openapi_operations import (
    REF,
    add_errors,
    body,
    follow,
    put_many,
    put_one,
    query_index,
    wakeups,
)
from cellfeed.store.http.server.openapi_page import page
from cellfeed.store.http.server.openapi_plain import made_plain, operation_id
from cellfeed.store.http.server.reads import READ_ROUTES
from cellfeed.store.http.server.wait import wait
from cellfeed.store.http.wait_messages import WaitMessage
from cellfeed.store.http.wakeup_messages import WakeupLine, WakeupsMessage

_DESCRIPTION: Final = (
    "A sharded store of immutable cells: (row_key, column_name, ref_key) -> body, written once."
    " Every shard is a log in added_id order. Puts are idempotent, so any request can be repeated."
    " Errors are {error, message, retriable, definite}; definite means that nothing was written."
    " Send JSON or MessagePack (Content-Type); accept either (Accept)."
)


class _Document(OpenAPIRenderPlugin):
    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return json.dumps(complete(openapi_schema), separators=(",", ":")).encode()


class _Page(OpenAPIRenderPlugin):
    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return page(complete(openapi_schema)).encode()


def openapi_config() -> OpenAPIConfig:
    """Litestar's setting for the document and its page."""
    return OpenAPIConfig(
        title="cellfeed worker",
        version=metadata.version("cellfeed"),
        description=_DESCRIPTION,
        path="/schema",
        operation_id_creator=operation_id,
        render_plugins=[
            _Page(path="/"),
            _Document(path="/openapi.json", media_type=OpenAPIMediaType.OPENAPI_JSON),
        ],
    )


def complete(derived: dict[str, Any]) -> dict[str, Any]:
    """The document that Litestar derived, with the put routes, request bodies and errors added; the
    argument is left as it is."""
    document: dict[str, Any] = json.loads(msgspec.json.encode(derived))
    kinds = [
        PutMessage,
        PutsMessage,
        PutResultMessage,
        PutResultsMessage,
        ErrorMessage,
        HealthMessage,
    ]
    kinds += [
        GetCellsMessage,
        GetLatestMessage,
        GetRowsMessage,
        ScanShardsMessage,
        IndexQueryMessage,
        IndexPageMessage,
        WaitMessage,
        FollowMessage,
        FollowLine,
        WakeupsMessage,
        WakeupLine,
    ]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=REF)
    document["components"]["schemas"].update(schemas)
    for route in (*READ_ROUTES, wait):
        if kind := route.opt.get("body"):
            for path in route.paths:
                document["paths"][_plain(path)]["post"]["requestBody"] = body(kind.__name__)
    paths = document["paths"]
    paths["/v1/{datastore}/cell"]["post"] = put_one()
    paths["/v1/{datastore}/cells"] = {"post": put_many()}
    paths["/v1/{datastore}/indexes/{index}/query"] = {"post": query_index()}
    paths["/v1/{datastore}/follow"] = {"post": follow()}
    paths["/v1/{datastore}/wakeups"] = {"post": wakeups()}
    for path, operations in paths.items():
        for operation in operations.values():
            add_errors(path, operation)
    document["paths"] = dict(sorted(paths.items()))
    made_plain(document)
    return document


def _plain(path: str) -> str:
    return path.replace(":str}", "}").replace(":int}", "}")
