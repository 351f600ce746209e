"""The OpenAPI 3.1 document at ``/schema/openapi.json`` and a page at ``/schema`` that reads without
any script or network.

Litestar derives the read routes from their handlers. Those of puts and of indexes are bare ASGI
(:mod:`cellfeed.store.http.server.puts`, ``index_query``), and every request body is decoded by
:mod:`cellfeed.store.http.server.requests`; both are described here from the same message types that
the code reads and writes.
"""

from __future__ import annotations

import html
import json
from importlib import metadata
from typing import Any, Final

import msgspec
from litestar import Request
from litestar.enums import OpenAPIMediaType
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import OpenAPIRenderPlugin

from cellfeed.store.followed import BOOKMARK_S
from cellfeed.store.http.follow_messages import FollowLine, FollowMessage
from cellfeed.store.http.messages import (
    JSON,
    MSGPACK,
    NDJSON,
    ErrorMessage,
    GetCellsMessage,
    GetLatestMessage,
    GetRowsMessage,
    IndexPageMessage,
    IndexQueryMessage,
    PutMessage,
    PutResultMessage,
    PutResultsMessage,
    PutsMessage,
    ScanShardsMessage,
)
from cellfeed.store.http.server.health import HealthMessage
from cellfeed.store.http.server.openapi_plain import made_plain, operation_id
from cellfeed.store.http.server.reads import READ_ROUTES
from cellfeed.store.http.server.wait import wait
from cellfeed.store.http.wait_messages import WaitMessage

_REF: Final = "#/components/schemas/{name}"
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
    ]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    document["components"]["schemas"].update(schemas)
    for route in (*READ_ROUTES, wait):
        if kind := route.opt.get("body"):
            for path in route.paths:
                document["paths"][_plain(path)]["post"]["requestBody"] = _body(kind.__name__)
    paths = document["paths"]
    paths["/v1/{datastore}/cell"]["post"] = _put_one()
    paths["/v1/{datastore}/cells"] = {"post": _put_many()}
    paths["/v1/{datastore}/indexes/{index}/query"] = {"post": _query_index()}
    paths["/v1/{datastore}/follow"] = {"post": _follow()}
    for path, operations in paths.items():
        for operation in operations.values():
            _add_errors(path, operation)
    document["paths"] = dict(sorted(paths.items()))
    made_plain(document)
    return document


def page(document: dict[str, Any]) -> str:
    """The document as one HTML page: every route with its parameters, bodies and answers."""
    rows = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            rows.append(
                f"<h2><code>{method.upper()}"
                f" {html.escape(path)}</code></h2><p>{html.escape(operation.get('summary', ''))}. "
                f"{html.escape(operation.get('description', ''))}</p><ul>{_parameters(operation)}</ul>"  # noqa: E501
            )
    schemas = html.escape(json.dumps(document["components"]["schemas"], indent=1))
    title = html.escape(document["info"]["title"])
    return (
        '<!doctype html><html lang="en"><meta'
        f' charset="utf-8"><title>{title}</title><style>body{{font:15px/1.5'
        " sans-serif;max-width:60rem;"
        f"margin:2rem auto;padding:0"
        f" 1rem}}code,pre{{background:#f4f4f4}}h2{{font-size:1rem;border-top:1px solid"
        f" #ddd;padding-top:1rem}}</style>"
        f"<h1>{title}"
        f" {html.escape(document['info']['version'])}</h1><p>{html.escape(document['info']['description'])}</p>"  # noqa: E501
        '<p>The document for tools: <a href="/schema/openapi.json">/schema/openapi.json</a>'
        f" (OpenAPI {document['openapi']}).</p>"
        f"{''.join(rows)}<h2>Messages</h2><pre>{schemas}</pre></html>"
    )


def _parameters(operation: dict[str, Any]) -> str:
    lines = []
    for item in operation.get("parameters", ()):
        needed = "" if item.get("required") else ", optional"
        lines.append(
            f"<li><code>{item['name']}</code> ({item['in']}{needed})"
            f" {html.escape(item.get('description') or '')}</li>"
        )
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        lines.append(f"<li>body: <code>{media_type}</code>, {_schema_name(content)}</li>")
    for status, answer in operation["responses"].items():
        for media_type, content in answer.get("content", {}).items():
            lines.append(f"<li>{status}: <code>{media_type}</code>, {_schema_name(content)}</li>")
    return "".join(lines)


def _schema_name(content: dict[str, Any]) -> str:
    return html.escape(str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2] or "text")


def _plain(path: str) -> str:
    return path.replace(":str}", "}").replace(":int}", "}")


def _content(name: str, *media_types: str) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _REF.format(name=name)}} for media_type in media_types}


def _body(name: str) -> dict[str, Any]:
    return {"required": True, "content": _content(name, JSON, MSGPACK)}


def _put_one() -> dict[str, Any]:
    return {
        "tags": ["cells"],
        "summary": "Write one cell",
        "description": (
            "200 with outcome stored or exists. 409 conflict when the key is stored with another"
            " body; 504 outcome_unknown is the only answer after which the cell may have been"
            " written."
        ),
        "operationId": "putCell",
        "parameters": [_DATASTORE],
        "requestBody": _body("PutMessage"),
        "responses": {
            "200": {
                "description": "Acknowledged: on disk",
                "content": _content("PutResultMessage", JSON, MSGPACK),
            }
        },
    }


def _put_many() -> dict[str, Any]:
    return {
        "tags": ["batches"],
        "summary": "Write many cells",
        "description": (
            "200 when the call was carried out, with a result per cell in order, also for cells"
            " that failed. A call of JSON or MessagePack is one transaction; NDJSON (one"
            " cell a line) is a"
            " stream of any length, answered line by line as it comes."
        ),
        "operationId": "putCells",
        "parameters": [_DATASTORE],
        "requestBody": {
            "required": True,
            "content": {**_content("PutsMessage", JSON, MSGPACK), **_content("PutMessage", NDJSON)},
        },
        "responses": {
            "200": {
                "description": "Carried out",
                "content": {
                    **_content("PutResultsMessage", JSON, MSGPACK),
                    **_content("PutResultMessage", NDJSON),
                },
            }
        },
    }


def _query_index() -> dict[str, Any]:
    return {
        "tags": ["indexes"],
        "summary": "Rows by the fields of their cells",
        "description": (
            "Rows in the order asked for, and the cursor of the next page. 503 while the index is"
            " being built, or has not come to wait_for in time."
        ),
        "operationId": "queryIndex",
        "parameters": [_DATASTORE, _INDEX],
        "requestBody": _body("IndexQueryMessage"),
        "responses": {
            "200": {
                "description": "The rows found",
                "content": _content("IndexPageMessage", JSON, MSGPACK),
            }
        },
    }


def _follow() -> dict[str, Any]:
    return {
        "tags": ["logs"],
        "summary": "Follow the logs",
        "description": (
            "An answer without end: a line (NDJSON) for each cell as it comes, and a bookmark at"
            f" least every {BOOKMARK_S:g} s. Keep the places passed as a token, and ask again with"
            " it after any end. 410 trimmed names the log's start; 421 other_history is for a token"
            " of another store."
        ),
        "operationId": "follow",
        "parameters": [_DATASTORE],
        "requestBody": _body("FollowMessage"),
        "responses": {
            "200": {"description": "Followed", "content": _content("FollowLine", NDJSON)},
        },
    }


_INDEX: Final = {
    "name": "index",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The index, as its definition's `table` names it.",
}
_DATASTORE: Final = {
    "name": "datastore",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The datastore's name.",
}


def _add_errors(path: str, operation: dict[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    errors = {"content": _content("ErrorMessage", JSON, MSGPACK)}
    if path == "/health/live" or path == "/metrics":
        responses.pop("400", None)
        return
    if path.startswith("/health"):
        responses["503"] = {"description": "Not ready", "content": _content("HealthMessage", JSON)}
        return
    for answer in responses.values():
        answer["content"].update(
            {MSGPACK: answer["content"][JSON]} if JSON in answer.get("content", {}) else {}
        )
    responses["400"] = {
        "description": "The request breaks a rule, which the message names",
        **errors,
    }
    responses["404"] = {"description": "No such cell, shard or datastore", **errors}
    responses["429"] = {"description": "Too much is waiting; nothing was written", **errors}
    responses["503"] = {"description": "The storage does not answer; nothing was written", **errors}
    if path.startswith("/v1/{datastore}/shards/"):
        responses["410"] = {
            "description": (
                "The log was asked for from below its start: the cells there were trimmed"
            ),
            **errors,
        }
    if path == "/v1/{datastore}/follow":
        responses["410"] = {
            "description": "Cells behind the token were trimmed; the message names the log's start",
            **errors,
        }
    if path in ("/v1/{datastore}/wait", "/v1/{datastore}/follow"):
        responses["421"] = {"description": "The token is of another history", **errors}
    if path.startswith("/v1/{datastore}/rows/"):
        responses["504"] = {"description": "It may be done in part; repeat it", **errors}
    if "requestBody" in operation:
        responses["413"] = {"description": "The body is too large", **errors}
        responses["415"] = {"description": "The Content-Type is not read here", **errors}
    if operation.get("operationId") in ("putCell", "putCells"):
        responses["409"] = {"description": "Stored already with another body", **errors}
        responses["410"] = {
            "description": "The row was erased: nothing was written, and nothing will be",
            **errors,
        }
        responses["504"] = {
            "description": "Not known whether it was written; put the same again to learn",
            **errors,
        }
