"""The routes of the registry over HTTP: each path with its question to the registry."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cellfeed.bridge.events.registered_schema import RegisteredSchema
from cellfeed.bridge.events.registry import SchemaRegistry
from cellfeed.bridge.events.registry_errors import OPERATION_NOT_PERMITTED, RegistryError
from cellfeed.store.errors import InvalidRequest


class RegistryRequest(NamedTuple):
    registry: SchemaRegistry
    arguments: list[str]
    query: dict[str, list[str]]
    body: bytes


Handler = Callable[[RegistryRequest], Any]


def route(method: str, segments: list[str]) -> tuple[Handler, list[str]]:
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


def _root(_: RegistryRequest) -> Any:
    return {}


def _types(_: RegistryRequest) -> Any:
    return ["AVRO"]


def _by_id(request: RegistryRequest) -> RegisteredSchema:
    # Text that is no number names no schema. Twelve digits are more than any id has.
    digits = request.arguments[0]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        raise RegistryError(404, f"HTTP 404 Not Found: {digits!a:.40} is not a schema id")
    return request.registry.by_id(int(digits))


def _schema_of_id(request: RegistryRequest) -> Any:
    return {"schema": _by_id(request).text}


def _text_of_id(request: RegistryRequest) -> Any:
    return json.loads(_by_id(request).text)


def _subjects_of_id(request: RegistryRequest) -> Any:
    return [subject for subject, _ in request.registry.uses(_by_id(request).schema_id)]


def _versions_of_id(request: RegistryRequest) -> Any:
    return [
        {"subject": subject, "version": version}
        for subject, version in request.registry.uses(_by_id(request).schema_id)
    ]


def _subjects(request: RegistryRequest) -> Any:
    prefix = request.query.get("subjectPrefix", [""])[0]
    return [subject for subject in request.registry.subjects() if subject.startswith(prefix)]


def _lookup(request: RegistryRequest) -> Any:
    subject = request.arguments[0]
    return _described(subject, request.registry.lookup(subject, *_posted_schema(request.body)))


def _versions(request: RegistryRequest) -> Any:
    return [schema.version for schema in request.registry.versions(request.arguments[0])]


def _register(request: RegistryRequest) -> Any:
    subject = request.arguments[0]
    return _described(subject, request.registry.register(subject, *_posted_schema(request.body)))


def _version(request: RegistryRequest) -> Any:
    subject, version = request.arguments
    return _described(subject, request.registry.version(subject, version))


def _text_of_version(request: RegistryRequest) -> Any:
    return json.loads(request.registry.version(*request.arguments).text)


def _config(request: RegistryRequest) -> Any:
    return {
        "compatibilityLevel": request.registry.compatibility(
            request.arguments[0] if request.arguments else None
        )
    }


def _mode(request: RegistryRequest) -> Any:
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
