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

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cellfeed.bridge.events.varints import SMALL, VARINTS, varint
from cellfeed.bridge.typed.body_schema import AvroType
from cellfeed.bridge.typed.logical_types import Encode, logical_encoder
from cellfeed.bridge.typed.mismatch import SchemaMismatch, kind_of

_TEXTS_KEPT_MAX: Final = 1_000
"""Encoded texts that each string field keeps, of those that come again and again: a bound on
memory."""

_TEXT_KEPT_CHARACTERS_MAX: Final = 40

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
            return _enum(avro)
        case "string":
            return _string()
        case "int":
            return _integer(31, "int")
        case "long":
            return _integer(63, "long")
        case "float":
            return _floating("<f", "float")
        case "double":
            return _floating("<d", "double")
        case "boolean":
            return _boolean
        case _:
            return _null


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
    text = _string()

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


def _string() -> Encode:
    kept: dict[str, bytes] = {}

    def encode(value: Any) -> bytes:
        if type(value) is not str:
            raise SchemaMismatch(f"is {kind_of(value)}, not text")
        found = kept.get(value)
        if found is None:
            text = value.encode()
            length = len(text)
            found = (VARINTS[length] if length < SMALL else varint(length)) + text
            if length <= _TEXT_KEPT_CHARACTERS_MAX and len(kept) < _TEXTS_KEPT_MAX:
                kept[value] = found
        return found

    return encode


def _enum(avro: AvroType) -> Encode:
    indexes = {symbol: varint(index) for index, symbol in enumerate(avro.symbols)}

    def encode(value: Any) -> bytes:
        found = indexes.get(value) if type(value) is str else None
        if found is None:
            raise SchemaMismatch(
                f"is {kind_of(value)}{f' {value[:40]!r}' if type(value) is str else ''}, none of"
                f" the symbols of enum {avro.name}"
            )
        return found

    return encode


def _integer(bits: int, kind: str) -> Encode:
    least, most = -(1 << bits), (1 << bits) - 1

    def encode(value: Any) -> bytes:
        if type(value) is not int:
            raise SchemaMismatch(f"is {kind_of(value)}, not an integer")
        if 0 <= value < SMALL:
            return VARINTS[value]
        if not least <= value <= most:
            raise SchemaMismatch(f"is {value}, beyond {kind}'s {bits + 1} bits")
        return varint(value)

    return encode


def _floating(layout: str, kind: str) -> Encode:
    form = struct.Struct(layout)
    pack, unpack = form.pack, form.unpack

    def encode(value: Any) -> bytes:
        if type(value) is not float and type(value) is not int:
            raise SchemaMismatch(f"is {kind_of(value)}, not a number")
        try:
            packed = pack(value)
        except OverflowError:
            raise SchemaMismatch(f"is {value}, beyond {kind}") from None
        if unpack(packed)[0] != value:
            raise SchemaMismatch(f"is {value}, which {kind} does not hold exactly")
        return packed

    return encode


def _boolean(value: Any) -> bytes:
    if type(value) is not bool:
        raise SchemaMismatch(f"is {kind_of(value)}, not true or false")
    return b"\1" if value else b"\0"


def _null(value: Any) -> bytes:
    if value is not None:
        raise SchemaMismatch(f"is {kind_of(value)}, not null")
    return b""
