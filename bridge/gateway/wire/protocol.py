"""Requests and responses as bytes, by kio's schemas. Pure: no socket.

Handlers speak in plain values: a parsed request entity in, a dict of field names out. Fields that
the asked-for version does not have are left out, so one handler serves all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import cache
from io import BytesIO
from typing import Any, Final, NamedTuple, get_args

from kio import index
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_schema_field_type,
)

from cellfeed.bridge.gateway.limits import CLIENT_ID_BYTES_MAX
from cellfeed.bridge.gateway.wire.frame_check import (
    MalformedFrame,
    behind_tags,
    checked_frame,
)

API_VERSIONS: Final = 18
FETCH: Final = 1
load_request_schema: Final = cache(index.load_request_schema)
load_response_schema: Final = cache(index.load_response_schema)
"""By API and version. kio looks its module up by name in each call: a tenth of a small request."""
_HEAD: Final = struct.Struct(">hhi")


class RequestHead(NamedTuple):
    """The head of a request, and where its body starts."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body_at: int


def read_head(frame: bytes, flexible_from: Mapping[int, int]) -> RequestHead:
    """The head of a frame. ``flexible_from``: by API key, the first version whose head has tagged
    fields. Raises MalformedFrame."""
    if len(frame) < _HEAD.size:
        raise MalformedFrame(f"a request of {len(frame)} bytes has no head")
    api_key, version, correlation_id = _HEAD.unpack_from(frame)
    position = _HEAD.size
    # client_id is a nullable string with a two-byte length, in flexible heads too.
    if len(frame) < position + 2:
        raise MalformedFrame("a request's head is cut")
    [size] = struct.unpack_from(">h", frame, position)
    position += 2
    client_id = ""
    if size >= 0:
        if position + size > len(frame):
            raise MalformedFrame(f"a client id of {size} bytes in a frame of {len(frame)}")
        client_id = frame[position : position + min(size, CLIENT_ID_BYTES_MAX)].decode(
            "utf-8", "replace"
        )
        position += size
    if version >= flexible_from.get(api_key, 1 << 15):
        position = behind_tags(frame, position)
    return RequestHead(api_key, version, correlation_id, client_id, position)


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether requests of this version have compact lengths and tagged fields."""
    return bool(load_request_schema(api_key, version).__flexible__)


def read_request(frame: bytes, head: RequestHead) -> Any:
    """The request entity of a frame, every length and count checked first. Raises
    MalformedFrame."""
    schema = load_request_schema(head.api_key, head.version)
    checked = checked_frame(schema, frame, head.body_at)
    try:
        entity, _ = _reader(schema)(checked, head.body_at)
    except Exception as error:
        raise MalformedFrame(f"not a {schema.__name__}: {error}") from error
    return entity


def write_response(head: RequestHead, values: Mapping[str, Any]) -> bytes:
    """The whole frame (length, head, body) of an answer."""
    schema = load_response_schema(head.api_key, head.version)
    buffer = BytesIO()
    entity_writer(schema)(buffer, build(schema, values))
    return frame_of(head, buffer.getvalue())


def frame_of(head: RequestHead, body: bytes) -> bytes:
    """Length and response head before an encoded body."""
    return b"".join(frame_parts(head, [body]))


def frame_parts(head: RequestHead, body: list[bytes]) -> list[bytes]:
    """The same for a body in pieces, without joining them: kept blocks go to the socket as they
    are."""
    # The answer to ApiVersions always has head version 0: its reader does not know our versions
    # yet.
    flexible = head.api_key != API_VERSIONS and is_flexible(head.api_key, head.version)
    response_head = struct.pack(">i", head.correlation_id) + (b"\x00" if flexible else b"")
    return [struct.pack(">i", len(response_head) + sum(map(len, body))) + response_head, *body]


def build(schema: type[Any], values: Mapping[str, Any]) -> Any:
    """A kio entity from plain values: nested dicts become its nested entities, error numbers
    ErrorCode, milliseconds timedelta."""
    return schema(
        **{
            name: convert(values[name])
            for name, convert, required in _plan(schema)
            if required or name in values
        }
    )


def _plan(schema: type[Any]) -> list[tuple[str, Any, bool]]:
    plan = _plans.get(schema)
    if plan is None:
        plan = [
            (
                field.name,
                _converter(field),
                field.default is MISSING and field.default_factory is MISSING,
            )
            for field in fields(schema)
        ]
        _plans[schema] = plan
    return plan


def _converter(field: Any) -> Any:
    kind = classify_field(field)
    if isinstance(kind, EntityTupleField):
        entity = kind.type_
        return lambda items: None if items is None else tuple(build(entity, item) for item in items)
    if isinstance(kind, EntityField):
        entity = kind.type_
        return lambda value: None if value is None else build(entity, value)
    if kind.is_array:
        return lambda items: None if items is None else tuple(items)
    match get_schema_field_type(field):
        case "error_code":
            return ErrorCode
        case "timedelta_i32":
            return lambda milliseconds: timedelta(milliseconds=milliseconds)
        case "timedelta_i64":
            return lambda milliseconds: timedelta(milliseconds=milliseconds)
        case "string" if not _is_nullable(field):
            return lambda text: "" if text is None else text
    return lambda value: value


def _is_nullable(field: Any) -> bool:
    return type(None) in get_args(field.type)


def _reader(schema: type[Any]) -> Any:
    if schema not in _readers:
        _readers[schema] = entity_reader(schema)
    return _readers[schema]


_plans: dict[type[Any], list[tuple[str, Any, bool]]] = {}
_readers: dict[type[Any], Any] = {}
