"""Every route of a worker, from the OpenAPI document that it serves."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.app import WorkerApp
from docs.site.configuration import values
from docs.site.markdown import cell, code, prose, table

Schema = Mapping[str, Any]


def http_api() -> Iterator[str]:
    """Markdown, a heading for each route, then one for each message."""
    document = asyncio.run(_document())
    yield f"{prose(document['info']['description'])}\n"
    yield "## Routes\n"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _route(method.upper(), path, operation)
    yield "## Messages\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _message(name, schema)


async def _document() -> dict[str, Any]:
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with (
        tempfile.TemporaryDirectory() as directory,
        Datastore.open_embedded(Path(directory), shards=1) as datastore,
    ):
        app = WorkerApp(datastore)
        try:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                answer = await client.get("/schema/openapi.json")
                document: dict[str, Any] = answer.raise_for_status().json()
                return document
        finally:
            app.close()


def _route(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"### `{method} {path}`\n"
    said = (operation.get(name, "") for name in ("summary", "description"))
    yield f"{'. '.join(prose(text) for text in said if text)}\n"
    yield from table(
        ("parameter", "in", "values", "what"),
        (
            (
                code(each["name"]),
                each["in"] if each.get("required") else f"{each['in']}, optional",
                values(each.get("schema", {})),
                cell(each.get("description") or ""),
            )
            for each in operation.get("parameters", ())
        ),
    )
    bodies = _contents(operation.get("requestBody", {}))
    answers = [
        (status, cell(answer["description"]), _contents(answer))
        for status, answer in sorted(operation["responses"].items())
    ]
    yield from table(
        ("request or status", "what", "body"),
        [*([("request", "", bodies)] if bodies else []), *answers],
    )


def _contents(described: Schema) -> str:
    return "; ".join(
        f"{values(content.get('schema', {}))} as {code(media_type)}"
        for media_type, content in described.get("content", {}).items()
    )


def _message(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{prose(schema.get('description', ''))}\n"
    needed = schema.get("required", [])
    yield from table(
        ("field", "values", "always there"),
        (
            (code(field), values(value), "yes" if field in needed else "")
            for field, value in schema.get("properties", {}).items()
        ),
    )
