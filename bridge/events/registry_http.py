"""The registry over HTTP, as Confluent's Schema Registry answers: ``AvroDeserializer`` and other
clients ask it before they read.

====================================  ==============================================================
``GET /schemas/ids/{id}``             the schema; also ``/schema``, ``/subjects`` and ``/versions``
                                      below it
``GET /schemas/types``                ``["AVRO"]``
``GET /subjects``                     all subjects; ``subjectPrefix`` narrows them
``GET /subjects/{s}/versions``        version numbers; below it ``/{n}``, ``/latest`` and
                                      ``/{n}/schema``
``POST /subjects/{s}``                which version is this schema
``POST /subjects/{s}/versions``       the id of a schema that is there already; a new one is refused
                                      with 42205
``GET /config``, ``/config/{s}``      the compatibility level
``GET /mode``, ``/mode/{s}``          ``READONLY``
====================================  ==============================================================

Everything else that writes is refused with 42205. Errors are ``{"error_code", "message"}``. A plain
ASGI app: a table of routes needs no framework.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote

from cellfeed.bridge.events.registry import (
    OPERATION_NOT_PERMITTED,
    RegisteredSchema,
    RegistryError,
    SchemaRegistry,
)
from cellfeed.store.errors import CellfeedError, InvalidRequest
from cellfeed.store.http.server.asgi import (
    App,
    PeerGone,
    Receive,
    Scope,
    Send,
    read_body,
    refuse_foreign_host,
)

CONTENT_TYPE: Final = b"application/vnd.schemaregistry.v1+json"

REQUEST_BYTES_MAX: Final = 1 << 20
"""One posted schema with its JSON wrapping; real ones have a few kilobytes."""


_STORE_ERROR: Final = 50001
"""Confluent's code for an error in the store behind the registry."""


class _Request(NamedTuple):
    registry: SchemaRegistry
    arguments: list[str]
    query: dict[str, list[str]]
    body: bytes


Handler = Callable[[_Request], Any]


def registry_app(registry: SchemaRegistry) -> App:
    """The ASGI app over one registry. Serve it on a loopback address; it refuses other Host
    names."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            try:
                status, answer = await _respond(registry, scope, receive)
            except PeerGone:
                return
            await _send(
                send,
                status,
                b""
                if scope["method"] == "HEAD"
                else json.dumps(answer, separators=(",", ":")).encode(),
            )

    return app


async def _respond(registry: SchemaRegistry, scope: Scope, receive: Receive) -> tuple[int, Any]:
    try:
        refuse_foreign_host(scope)
        body = await read_body(scope, receive, REQUEST_BYTES_MAX)
        # Segments are split before they are unquoted: a subject may hold a quoted slash.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        segments = [
            unquote(segment)
            for segment in raw.decode("latin-1").partition("?")[0].split("/")
            if segment
        ]
        handler, arguments = _route(scope["method"], segments)
        request = _Request(
            registry, arguments, parse_qs(scope["query_string"].decode("latin-1")), body
        )
        # The columns come from the store and a posted schema takes time to parse: neither may hold
        # up the loop that serves Kafka clients.
        return 200, await asyncio.to_thread(handler, request)
    except RegistryError as error:
        return error.status, {"error_code": error.error_code, "message": str(error)}
    except CellfeedError as error:
        status = error.http_status
        return status, {
            "error_code": status if status < 500 else _STORE_ERROR,
            "message": str(error),
        }


def _route(method: str, segments: list[str]) -> tuple[Handler, list[str]]:
    for pattern, handlers in _ROUTES:
        if len(pattern) == len(segments) and all(
            part in ("*", segment) for part, segment in zip(pattern, segments, strict=True)
        ):
            arguments = [
                segment for part, segment in zip(pattern, segments, strict=True) if part == "*"
            ]
            handler = handlers.get("GET" if method == "HEAD" else method)
            if handler is not None:
                return handler, arguments
            if method in ("PUT", "POST", "DELETE", "PATCH"):
                raise RegistryError(
                    OPERATION_NOT_PERMITTED,
                    f"{method} is not permitted: the registry is in read-only mode",
                )
            raise RegistryError(405, f"HTTP 405 Method Not Allowed: {method!a:.20}")
    raise RegistryError(404, f"HTTP 404 Not Found: {'/' + '/'.join(segments)!a:.200}")


def _root(_: _Request) -> Any:
    return {}


def _types(_: _Request) -> Any:
    return ["AVRO"]


def _by_id(request: _Request) -> RegisteredSchema:
    # Text that is no number names no schema. Twelve digits are more than any id has.
    digits = request.arguments[0]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        raise RegistryError(404, f"HTTP 404 Not Found: {digits!a:.40} is not a schema id")
    return request.registry.by_id(int(digits))


def _schema_of_id(request: _Request) -> Any:
    return {"schema": _by_id(request).text}


def _text_of_id(request: _Request) -> Any:
    return json.loads(_by_id(request).text)


def _subjects_of_id(request: _Request) -> Any:
    return [subject for subject, _ in request.registry.uses(_by_id(request).schema_id)]


def _versions_of_id(request: _Request) -> Any:
    return [
        {"subject": subject, "version": version}
        for subject, version in request.registry.uses(_by_id(request).schema_id)
    ]


def _subjects(request: _Request) -> Any:
    prefix = request.query.get("subjectPrefix", [""])[0]
    return [subject for subject in request.registry.subjects() if subject.startswith(prefix)]


def _lookup(request: _Request) -> Any:
    subject = request.arguments[0]
    return _described(subject, request.registry.lookup(subject, *_posted_schema(request.body)))


def _versions(request: _Request) -> Any:
    return [schema.version for schema in request.registry.versions(request.arguments[0])]


def _register(request: _Request) -> Any:
    subject = request.arguments[0]
    return _described(subject, request.registry.register(subject, *_posted_schema(request.body)))


def _version(request: _Request) -> Any:
    subject, version = request.arguments
    return _described(subject, request.registry.version(subject, version))


def _text_of_version(request: _Request) -> Any:
    return json.loads(request.registry.version(*request.arguments).text)


def _config(request: _Request) -> Any:
    return {
        "compatibilityLevel": request.registry.compatibility(
            request.arguments[0] if request.arguments else None
        )
    }


def _mode(request: _Request) -> Any:
    for subject in request.arguments:
        request.registry.check_subject(subject)
    return {"mode": "READONLY"}


# "*" stands for one argument. The first pattern that fits wins.
_ROUTES: Final[list[tuple[tuple[str, ...], dict[str, Handler]]]] = [
    ((), {"GET": _root}),
    (("schemas", "types"), {"GET": _types}),
    (("schemas", "ids", "*"), {"GET": _schema_of_id}),
    (("schemas", "ids", "*", "schema"), {"GET": _text_of_id}),
    (("schemas", "ids", "*", "subjects"), {"GET": _subjects_of_id}),
    (("schemas", "ids", "*", "versions"), {"GET": _versions_of_id}),
    (("subjects",), {"GET": _subjects}),
    (("subjects", "*"), {"POST": _lookup}),
    (("subjects", "*", "versions"), {"GET": _versions, "POST": _register}),
    (("subjects", "*", "versions", "*"), {"GET": _version}),
    (("subjects", "*", "versions", "*", "schema"), {"GET": _text_of_version}),
    (("config",), {"GET": _config}),
    (("config", "*"), {"GET": _config}),
    (("mode",), {"GET": _mode}),
    (("mode", "*"), {"GET": _mode}),
]


def _described(subject: str, schema: RegisteredSchema) -> dict[str, object]:
    return {
        "subject": subject,
        "version": schema.version,
        "id": schema.schema_id,
        "schema": schema.text,
    }


def _posted_schema(body: bytes) -> tuple[object, object]:
    try:
        posted = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequest(
            'the request body is not JSON; send {"schema": "<the schema as text>"}'
        ) from None
    if not isinstance(posted, dict):
        raise InvalidRequest(
            'the request body is not an object; send {"schema": "<the schema as text>"}'
        )
    return posted.get("schema"), posted.get("schemaType")


async def _live(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", CONTENT_TYPE), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
