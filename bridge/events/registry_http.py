"""The read endpoints of Confluent's Schema Registry, so that its clients' deserialisers work unchanged.

Paths, fields and error codes follow the Schema Registry API reference. Registering an identical schema gives its id; registering another one is refused.
"""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig

from bridge.events.registry import SchemaRegistry

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class _RegistryError(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def registry_app(registry: SchemaRegistry) -> Litestar:
    """The ASGI application."""
    handlers = [_schema, _schema_text, _schema_versions, _subjects, _versions, _version, _version_schema, _look_up, _register, _config, _subject_config, _types]
    return Litestar(
        route_handlers=handlers,
        state=State({"registry": registry}),
        exception_handlers={_RegistryError: _told, HTTPException: _told_http},
        openapi_config=OpenAPIConfig(title="cellfeed schema registry (read only)", version="1"),
        request_max_body_size=1 << 20,
        logging_config=None,
    )


def _answer(content: Any, status: int = 200) -> Response[Any]:
    return Response(content, status_code=status, media_type=_MEDIA_TYPE)


def _told(_: Request[Any, Any, Any], error: _RegistryError) -> Response[Any]:
    return _answer({"error_code": error.code, "message": error.message}, error.status)


def _told_http(_: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    return _answer({"error_code": error.status_code, "message": error.detail}, error.status_code)


@get("/schemas/ids/{schema_id:int}")
async def _schema(state: State, schema_id: int) -> Response[Any]:
    return _answer({"schema": _text(state.registry, schema_id)})


@get("/schemas/ids/{schema_id:int}/schema")
async def _schema_text(state: State, schema_id: int) -> Response[Any]:
    import json

    return _answer(json.loads(_text(state.registry, schema_id)))


@get("/schemas/ids/{schema_id:int}/versions")
async def _schema_versions(state: State, schema_id: int) -> Response[Any]:
    _text(state.registry, schema_id)
    subjects = await asyncio.to_thread(state.registry.subjects)
    return _answer([{"subject": subject, "version": 1} for subject in subjects])


@get("/subjects")
async def _subjects(state: State) -> Response[Any]:
    return _answer(await asyncio.to_thread(state.registry.subjects))


@get("/subjects/{subject:str}/versions")
async def _versions(state: State, subject: str) -> Response[Any]:
    await _known(state.registry, subject)
    return _answer([1])


@get("/subjects/{subject:str}/versions/{version:str}")
async def _version(state: State, subject: str, version: str) -> Response[Any]:
    return _answer(await _one(state.registry, subject, version))


@get("/subjects/{subject:str}/versions/{version:str}/schema")
async def _version_schema(state: State, subject: str, version: str) -> Response[Any]:
    import json

    found = await _one(state.registry, subject, version)
    return _answer(json.loads(found["schema"]))


@post("/subjects/{subject:str}", status_code=200)
async def _look_up(state: State, subject: str, data: dict[str, Any]) -> Response[Any]:
    found = await _known(state.registry, subject)
    if not state.registry.same_schema(str(data.get("schema"))):
        raise _RegistryError(404, 40403, "Schema not found")
    return _answer(found)


@post("/subjects/{subject:str}/versions", status_code=200)
async def _register(state: State, subject: str, data: dict[str, Any]) -> Response[Any]:
    await _known(state.registry, subject)
    if not state.registry.same_schema(str(data.get("schema"))):
        raise _RegistryError(422, 42205, f"Subject {subject} is read only: its schema is cellfeed's own")
    return _answer({"id": state.registry.envelope_id})


@get("/config")
async def _config() -> Response[Any]:
    return _answer({"compatibilityLevel": "FULL_TRANSITIVE"})


@get("/config/{subject:str}")
async def _subject_config(state: State, subject: str) -> Response[Any]:
    await _known(state.registry, subject)
    return _answer({"compatibilityLevel": "FULL_TRANSITIVE"})


@get("/schemas/types")
async def _types() -> Response[Any]:
    return _answer(["AVRO"])


def _text(registry: SchemaRegistry, schema_id: int) -> str:
    text = registry.text(schema_id)
    if text is None:
        raise _RegistryError(404, 40403, f"Schema {schema_id} not found")
    return text


async def _known(registry: SchemaRegistry, subject: str) -> dict[str, Any]:
    found = await asyncio.to_thread(registry.version, subject)
    if found is None:
        raise _RegistryError(404, 40401, f"Subject '{subject}' not found.")
    return found


async def _one(registry: SchemaRegistry, subject: str, version: str) -> dict[str, Any]:
    found = await _known(registry, subject)
    if version not in ("1", "latest", "-1"):
        try:
            number = int(version)
        except ValueError:
            number = 0
        if number < 1:
            raise _RegistryError(422, 42202, f"The specified version '{version}' is not a valid version id.")
        raise _RegistryError(404, 40402, f"Version {version} not found.")
    return found
