"""A JSON body as Avro binary, exactly or not at all: a reader of the record gets the body that was
put.

====================================
==================================================================================================
Avro                                  JSON
====================================
==================================================================================================
null, boolean                         null, true and false
int, long                             a number without fraction and exponent, of 32 or 64 bits
float, double                         a number that 32 or 64 bits hold exactly (2 and 2.0 are one
                                      number)
string; enum                          text; one of the symbols
string with ``uuid``                  lower-case text of a UUID
decimal                               text with exactly ``scale`` digits behind the point:
                                      ``"12.90"``, never a JSON number, which is a double
date                                  text: ``2019-03-23``
timestamp-micros (local-: no ``Z``)   text: ``2019-03-23T20:21:09Z``, with six digits of a second
                                      where they are not all 0, as Python's isoformat
timestamp-millis (local-: no ``Z``)   text with three digits always: ``2019-03-23T20:21:09.000Z``,
                                      as JavaScript's toISOString
array, map                            list, object
record                                an object with exactly these members
union                                 the first branch that fits
====================================
==================================================================================================

A record's member must be there, unless its field's default is null: then null in the record *is* a
member that is not there. A body that says null itself does not fit such a field, as nobody could
distinguish the two. Other defaults are for readers with a newer schema. A value that is not in the
table does not fit. Logical types are in ``logical_types.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cellfeed.bridge.events.varints import VARINTS, varint
from cellfeed.bridge.typed.avro_types import AvroType
from cellfeed.bridge.typed.logical_types import Encode, logical_encoder
from cellfeed.bridge.typed.mismatch import SchemaMismatch, kind_of
from cellfeed.bridge.typed.scalar_encoders import (
    encode_boolean,
    encode_null,
    enum_encoder,
    floating_encoder,
    integer_encoder,
    string_encoder,
)

_MISSING: Final = object()

_decode: Final = msgspec.json.Decoder().decode


class BodyEncoder:
    """Encodes bodies by one schema. Safe to use from several threads."""

    def __init__(self, root: AvroType) -> None:
        self._encode = _compiled(root, {})

    def encode(self, body: Mapping[str, Any]) -> bytes:
        """A decoded body as Avro binary. Raises SchemaMismatch."""
        return self._encode(body)


def decoded(body_json: bytes) -> Any:
    """The argument for :meth:`BodyEncoder.encode`, from canonical JSON."""
    return _decode(body_json)


def _compiled(avro: AvroType, records: dict[str, Encode]) -> Encode:
    if avro.logical:
        return logical_encoder(avro)
    match avro.kind:
        case "record":
            return records.get(avro.name) or _record(avro, records)
        case "union":
            return _union(avro, records)
        case "array" | "map":
            assert avro.items is not None  # noqa: S101 (for the type checker)
            inner = _compiled(avro.items, records)
            return _array(inner) if avro.kind == "array" else _map(inner)
        case "enum":
            return enum_encoder(avro)
        case "string":
            return string_encoder()
        case "int":
            return integer_encoder(31, "int")
        case "long":
            return integer_encoder(63, "long")
        case "float":
            return floating_encoder("<f", "float")
        case "double":
            return floating_encoder("<d", "double")
        case "boolean":
            return encode_boolean
        case _:
            return encode_null


def _record(avro: AvroType, records: dict[str, Encode]) -> Encode:
    fields: list[tuple[str, Encode, bytes | None]] = []

    def encode(value: Any) -> bytes:
        if type(value) is not dict:
            raise SchemaMismatch(f"is {kind_of(value)}, not an object")
        parts: list[bytes] = []
        append, member_of, left = parts.append, value.get, len(value)
        name = ""
        try:
            for name, encode_field, missing in fields:
                member = member_of(name, _MISSING)
                if member is not _MISSING:
                    append(encode_field(member))
                    left -= 1
                elif missing is not None:
                    append(missing)
                else:
                    raise SchemaMismatch("is missing")
        except SchemaMismatch as mismatch:
            mismatch.path.append(name)
            raise
        if left:
            known = {field[0] for field in fields}
            unknown = SchemaMismatch("is a member that the schema does not have")
            unknown.path.append(next(name for name in value if name not in known)[:80])
            raise unknown
        return b"".join(parts)

    records[avro.name] = encode
    for field in avro.fields:
        null = (
            None
            if not field.may_be_missing
            else varint(_null_branch(field.type))
            if field.type.kind == "union"
            else b""
        )
        encode_field = _compiled(field.type, records)
        fields.append(
            (field.name, _not_null(encode_field) if field.may_be_missing else encode_field, null)
        )
    return encode


def _null_branch(union: AvroType) -> int:
    return next(index for index, branch in enumerate(union.branches) if branch.kind == "null")


def _not_null(encode: Encode) -> Encode:
    def encode_there(value: Any) -> bytes:
        if value is None:
            raise SchemaMismatch(
                "is null, and null stands for a member that is not there, as the field's default is"
                " null"
            )
        return encode(value)

    return encode_there


def _union(avro: AvroType, records: dict[str, Encode]) -> Encode:
    branches = [
        (VARINTS[index], _compiled(branch, records)) for index, branch in enumerate(avro.branches)
    ]

    def encode(value: Any) -> bytes:
        reasons = []
        for index, encode_branch in branches:
            try:
                return index + encode_branch(value)
            except SchemaMismatch as mismatch:
                reasons.append(mismatch)
        # The error of a record branch names the wrong member; that of the others only says that it
        # is another type.
        raise (
            max(reasons, key=lambda each: len(each.path))
            if any(each.path for each in reasons)
            else SchemaMismatch(f"is {kind_of(value)}, none of {avro}")
        )

    return encode


def _array(inner: Encode) -> Encode:
    def encode(value: Any) -> bytes:
        if type(value) is not list:
            raise SchemaMismatch(f"is {kind_of(value)}, not a list")
        if not value:
            return b"\0"
        parts = [varint(len(value))]
        index = 0
        try:
            for index, each in enumerate(value):  # noqa: B007 (reported when an item does not fit)
                parts.append(inner(each))
        except SchemaMismatch as mismatch:
            mismatch.path.append(str(index))
            raise
        parts.append(b"\0")
        return b"".join(parts)

    return encode


def _map(inner: Encode) -> Encode:
    text = string_encoder()

    def encode(value: Any) -> bytes:
        if type(value) is not dict:
            raise SchemaMismatch(f"is {kind_of(value)}, not an object")
        if not value:
            return b"\0"
        parts = [varint(len(value))]
        name = ""
        try:
            for name, each in value.items():
                parts += (text(name), inner(each))
        except SchemaMismatch as mismatch:
            mismatch.path.append(name[:80])
            raise
        parts.append(b"\0")
        return b"".join(parts)

    return encode
