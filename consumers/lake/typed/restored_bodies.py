"""Typed rows back to the JSON of their bodies, for digests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec

from cellfeed.bridge.typed.avro_types import AvroType
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.consumers.lake.typed.leaves import leaf
from cellfeed.consumers.lake.typed.merged_schema import MergedSchema
from cellfeed.consumers.lake.typed.shapes import shape_of, stands_as_json

Restore = Callable[[Any], Any]

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder().decode


class RestoredBodies:
    """``versions``: texts of the body's schemas, oldest first, with numbers from 1."""

    def __init__(self, versions: Sequence[str]) -> None:
        roots = [body_schema(text).root for text in versions]
        self._restore = [_restorer(root) for root in roots]
        schema = MergedSchema(
            [(number, shape_of(root).arrow) for number, root in enumerate(roots, 1)]
        )
        self.columns = dict(zip(schema.members, (each.name for each in schema.fields), strict=True))

    def body(self, version: int, row: Mapping[str, Any]) -> bytes:
        """:func:`plain` of the body that a row was made of. ``row``: column names and Python values
        as Arrow gives them."""
        members = {name: row[column] for name, column in self.columns.items() if column in row}
        return _encode(_plain(self._restore[version - 1](members)))


def plain(body_json: bytes) -> bytes:
    """A body as JSON that has one spelling for each number: a column of doubles does not know
    whether 2 was put or 2.0."""
    return _encode(_plain(_decode(body_json)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and -(2.0**63) <= value < 2.0**64:
        return value if value == 0 and math.copysign(1, value) < 0 else int(value)
    return value


def _restorer(avro: AvroType, inside: frozenset[str] = frozenset()) -> Restore:
    if avro.kind == "union":
        branches = [each for each in avro.branches if each.kind != "null"]
        return _or_null(_restorer(branches[0], inside)) if len(branches) == 1 else _of_text
    if avro.kind == "record":
        if inside and stands_as_json(avro, inside):
            return _of_text
        return _record(avro, inside | {avro.name})
    if avro.kind == "array":
        assert avro.items is not None  # noqa: S101 (for the type checker)
        of_item = _or_null(_restorer(avro.items, inside))
        return lambda value: [of_item(each) for each in value]
    if avro.kind == "map":
        assert avro.items is not None  # noqa: S101 (for the type checker)
        of_entry = _or_null(_restorer(avro.items, inside))
        return lambda value: {name: of_entry(each) for name, each in value}
    if leaf(avro) is None:
        return _of_text
    return _SCALARS.get(avro.logical) or partial(_moment, avro.logical)


def _record(avro: AvroType, inside: frozenset[str]) -> Restore:
    fields = [
        (field.name, field.may_be_missing, _or_null(_restorer(field.type, inside)))
        for field in avro.fields
    ]

    def restore(value: Any) -> Any:
        return {
            name: of_field(value.get(name))
            for name, may_be_missing, of_field in fields
            if not (may_be_missing and value.get(name) is None)
        }

    return restore


def _or_null(restore: Restore) -> Restore:
    return lambda value: None if value is None else restore(value)


def _of_text(value: Any) -> Any:
    return _decode(value.encode())


def _moment(logical: str, value: Any) -> str:
    text: str = value.replace(tzinfo=None).isoformat(
        timespec="milliseconds" if logical.endswith("millis") else "auto"
    )
    return text if logical.startswith("local-") else f"{text}Z"


_SCALARS: Final[dict[str, Restore]] = {
    "": lambda value: value,
    "uuid": lambda value: str(UUID(bytes=value) if isinstance(value, bytes) else value),
    "decimal": lambda value: format(value, "f"),
    "date": lambda value: value.isoformat(),
}
