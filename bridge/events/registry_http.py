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
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from cellfeed.bridge.events.registry import SchemaRegistry
from cellfeed.bridge.events.registry_errors import RegistryError
from cellfeed.bridge.events.registry_routes import RegistryRequest, route
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.server.asgi import (
    App,
    PeerGone,
    Receive,
    Scope,
    Send,
    refuse_foreign_host,
)
from cellfeed.store.http.server.bodies import read_body

CONTENT_TYPE: Final = b"application/vnd.schemaregistry.v1+json"

REQUEST_BYTES_MAX: Final = 1 << 20
"""One posted schema with its JSON wrapping; real ones have a few kilobytes."""


_STORE_ERROR: Final = 50001
"""Confluent's code for an error in the store behind the registry."""


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
        handler, arguments = route(scope["method"], segments)
        request = RegistryRequest(
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


async def _live(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", CONTENT_TYPE), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
