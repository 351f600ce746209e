"""A request of every API and version that the gateway advertises, with every field set."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from io import BytesIO
from typing import Any, get_args
from uuid import UUID

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_schema_field_type,
)

from cellfeed.bridge.gateway.apis.advertised import APIS

ALL_VERSIONS = [
    (api.key, version)
    for api in APIS.values()
    for version in range(api.versions[0], api.versions[1] + 1)
]


SAMPLES: dict[str, Any] = {
    "string": "text",
    "bytes": b"bytes",
    "records": b"records",
    "bool": True,
    "error_code": ErrorCode.none,
    "uuid": UUID(int=7),
    "timedelta_i32": timedelta(milliseconds=1500),
    "timedelta_i64": timedelta(milliseconds=1500),
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
}


def sample_entity(schema: type[Any], *, nulls: bool) -> Any:
    """An entity with every field set: arrays of two, or with ``nulls`` None wherever that is
    allowed."""
    values: dict[str, Any] = {}
    for field in fields(schema):
        kind = classify_field(field)
        tagged = "tag" in field.metadata
        if nulls and not tagged and type(None) in get_args(field.type):
            values[field.name] = None
        elif isinstance(kind, EntityTupleField):
            values[field.name] = tuple(sample_entity(kind.type_, nulls=nulls) for _ in range(2))
        elif isinstance(kind, EntityField):
            values[field.name] = sample_entity(kind.type_, nulls=nulls)
        else:
            value = SAMPLES[get_schema_field_type(field)]
            values[field.name] = (value, value) if kind.is_array else value
    return schema(**values)


def sample(key: int, version: int, *, nulls: bool = False) -> tuple[Any, bytes]:
    """A request entity of this API and version, and its bytes."""
    schema = load_request_schema(key, version)
    entity = sample_entity(schema, nulls=nulls)
    buffer = BytesIO()
    entity_writer(schema)(buffer, entity)
    return entity, buffer.getvalue()
