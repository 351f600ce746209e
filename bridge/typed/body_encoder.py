"""A JSON body as Avro binary, exactly or not at all: whoever reads the record back has the body that was put.

====================================  ==================================================================================================
Avro                                  JSON
====================================  ==================================================================================================
null, boolean                         null, true and false
int, long                             a number without fraction and exponent, of 32 or 64 bits
float, double                         a number that 32 or 64 bits hold exactly (2 and 2.0 are one number)
string; enum                          text; one of the symbols
string with ``uuid``                  lower-case text of a UUID
decimal                               text with exactly ``scale`` digits behind the point: ``"12.90"``, never a JSON number, which is a double
date                                  text: ``2019-03-23``
timestamp-micros (local-: no ``Z``)   text: ``2019-03-23T20:21:09Z``, with six digits of a second where they are not all 0, as Python's isoformat
timestamp-millis (local-: no ``Z``)   text with three digits always: ``2019-03-23T20:21:09.000Z``, as JavaScript's toISOString
array, map                            list, object
record                                an object with exactly these members
union                                 the first branch that fits
====================================  ==================================================================================================

A record's member must be there, unless its field's default is null: then null in the record *is* a member that is not there, and a body that says null itself
does not fit, as nobody could tell the two apart. Other defaults are for readers with a newer schema. Whatever is not in the table does not fit.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, Final
from uuid import UUID

import msgspec

from bridge.events.varints import PAIRS, SMALL, TAILS, VARINTS, varint
from bridge.typed.body_schema import AvroType
from store.errors import CellfeedError

Encode = Callable[[Any], bytes]

_TEXTS_KEPT_MAX: Final = 1_000
"""Encoded texts that each string field keeps, of those that come again and again: a bound on memory."""

_TEXT_KEPT_CHARACTERS_MAX: Final = 40

_MISSING: Final = object()
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

_days: dict[Any, int] = {}
_DAYS_KEPT_MAX: Final = 10_000
"""Days that were read and are kept: 27 years, and a bound on memory."""

_TWO_DIGITS: Final = {f"{number:02}": number for number in range(60)}
_HOURS: Final = {f"{number:02}": number for number in range(24)}
_LONG_FROM: Final = 1 << 41
_LONG_BELOW: Final = 1 << 53
"""What takes three pairs and a tail: in microseconds from January 1970 to the year 2255."""

_decode: Final = msgspec.json.Decoder().decode


class Misfit(CellfeedError):
    """A body is not of a schema: which member, and why."""

    code = "misfit"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self.path)) or 'the body'} {self.reason}"


class BodyEncoder:
    """Encodes bodies by one schema. Safe to use from several threads."""

    def __init__(self, root: AvroType) -> None:
        self._encode = _compiled(root, {})

    def encode(self, body: Mapping[str, Any]) -> bytes:
        """A decoded body as Avro binary. Raises Misfit."""
        return self._encode(body)


def decoded(body_json: bytes) -> Any:
    """What :meth:`BodyEncoder.encode` takes, of canonical JSON."""
    return _decode(body_json)


def _compiled(avro: AvroType, records: dict[str, Encode]) -> Encode:
    if avro.logical:
        return _logical(avro)
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
            raise Misfit(f"is {_kind(value)}, not an object")
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
                    raise Misfit("is missing")
        except Misfit as misfit:
            misfit.path.append(name)
            raise
        if left:
            known = {field[0] for field in fields}
            unknown = Misfit("is a member that the schema does not have")
            unknown.path.append(next(name for name in value if name not in known)[:80])
            raise unknown
        return b"".join(parts)

    records[avro.name] = encode
    for field in avro.fields:
        null = None if not field.may_be_missing else varint(_null_branch(field.type)) if field.type.kind == "union" else b""
        encode_field = _compiled(field.type, records)
        fields.append((field.name, _not_null(encode_field) if field.may_be_missing else encode_field, null))
    return encode


def _null_branch(union: AvroType) -> int:
    return next(index for index, branch in enumerate(union.branches) if branch.kind == "null")


def _not_null(encode: Encode) -> Encode:
    def encode_there(value: Any) -> bytes:
        if value is None:
            raise Misfit("is null, and null stands for a member that is not there, as the field's default is null")
        return encode(value)

    return encode_there


def _union(avro: AvroType, records: dict[str, Encode]) -> Encode:
    branches = [(VARINTS[index], _compiled(branch, records)) for index, branch in enumerate(avro.branches)]

    def encode(value: Any) -> bytes:
        reasons = []
        for index, encode_branch in branches:
            try:
                return index + encode_branch(value)
            except Misfit as misfit:
                reasons.append(misfit)
        # A branch that is a record tells the member that is wrong; the others only that it is another type.
        raise max(reasons, key=lambda each: len(each.path)) if any(each.path for each in reasons) else Misfit(f"is {_kind(value)}, none of {avro}")

    return encode


def _array(inner: Encode) -> Encode:
    def encode(value: Any) -> bytes:
        if type(value) is not list:
            raise Misfit(f"is {_kind(value)}, not a list")
        if not value:
            return b"\0"
        parts = [varint(len(value))]
        index = 0
        try:
            for index, each in enumerate(value):  # noqa: B007 (told when an item does not fit)
                parts.append(inner(each))
        except Misfit as misfit:
            misfit.path.append(str(index))
            raise
        parts.append(b"\0")
        return b"".join(parts)

    return encode


def _map(inner: Encode) -> Encode:
    text = _string()

    def encode(value: Any) -> bytes:
        if type(value) is not dict:
            raise Misfit(f"is {_kind(value)}, not an object")
        if not value:
            return b"\0"
        parts = [varint(len(value))]
        name = ""
        try:
            for name, each in value.items():
                parts += (text(name), inner(each))
        except Misfit as misfit:
            misfit.path.append(name[:80])
            raise
        parts.append(b"\0")
        return b"".join(parts)

    return encode


def _string() -> Encode:
    kept: dict[str, bytes] = {}

    def encode(value: Any) -> bytes:
        if type(value) is not str:
            raise Misfit(f"is {_kind(value)}, not text")
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
            raise Misfit(f"is {_kind(value)}{f' {value[:40]!r}' if type(value) is str else ''}, none of the symbols of enum {avro.name}")
        return found

    return encode


def _integer(bits: int, kind: str) -> Encode:
    least, most = -(1 << bits), (1 << bits) - 1

    def encode(value: Any) -> bytes:
        if type(value) is not int:
            raise Misfit(f"is {_kind(value)}, not an integer")
        if 0 <= value < SMALL:
            return VARINTS[value]
        if not least <= value <= most:
            raise Misfit(f"is {value}, beyond {kind}'s {bits + 1} bits")
        return varint(value)

    return encode


def _floating(layout: str, kind: str) -> Encode:
    form = struct.Struct(layout)
    pack, unpack = form.pack, form.unpack

    def encode(value: Any) -> bytes:
        if type(value) is not float and type(value) is not int:
            raise Misfit(f"is {_kind(value)}, not a number")
        try:
            packed = pack(value)
        except OverflowError:
            raise Misfit(f"is {value}, beyond {kind}") from None
        if unpack(packed)[0] != value:
            raise Misfit(f"is {value}, which {kind} does not hold exactly")
        return packed

    return encode


def _boolean(value: Any) -> bytes:
    if type(value) is not bool:
        raise Misfit(f"is {_kind(value)}, not true or false")
    return b"\1" if value else b"\0"


def _null(value: Any) -> bytes:
    if value is not None:
        raise Misfit(f"is {_kind(value)}, not null")
    return b""


def _logical(avro: AvroType) -> Encode:
    match avro.logical:
        case "uuid":
            return _uuid
        case "decimal":
            return _decimal(avro)
        case "date":
            return _date
        case logical:
            return _moment(in_utc=not logical.startswith("local-"), thousandths=logical.endswith("millis"))


def _uuid(value: Any) -> bytes:
    try:
        if type(value) is str and str(UUID(value)) == value:
            return VARINTS[36] + value.encode()
    except ValueError:
        pass
    raise Misfit(f"is {_kind(value)} that is no UUID in lower case with hyphens")


def _decimal(avro: AvroType) -> Encode:
    form = re.compile(r"-?(?:0|[1-9][0-9]*)" + (rf"\.[0-9]{{{avro.scale}}}" if avro.scale else ""))
    beyond = 10**avro.precision

    def encode(value: Any) -> bytes:
        # The length first: the digits of longer text are never made a number.
        if type(value) is not str or len(value) > avro.precision + 3 or form.fullmatch(value) is None:
            raise Misfit(f"is {_kind(value)} that is no decimal with {avro.scale} digits behind the point (as text)")
        unscaled = int(value.replace(".", ""))
        if abs(unscaled) >= beyond or (not unscaled and value[0] == "-"):
            raise Misfit(f"is {value[:40]}, which is no {avro}")
        if avro.kind == "fixed":
            return unscaled.to_bytes(avro.size, "big", signed=True)
        length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return varint(length) + unscaled.to_bytes(length, "big", signed=True)

    return encode


def _date(value: Any) -> bytes:
    day = _days.get(value) if type(value) is str else None
    if day is None:
        day = _day(value)
    if day is None:
        raise Misfit(f"is {_kind(value)} that is no date as 2019-03-23")
    return varint(day)


def _day(text: Any) -> int | None:
    """Days since 1970 of ``2019-03-23``; None for anything else."""
    try:
        if type(text) is not str or (read := date.fromisoformat(text)).isoformat() != text:
            return None
    except ValueError:
        return None
    day = read.toordinal() - _EPOCH_DAY
    if len(_days) < _DAYS_KEPT_MAX:
        _days[text] = day
    return day


def _moment(*, in_utc: bool, thousandths: bool) -> Encode:
    example = f"2019-03-23T20:21:09{'.000' if thousandths else ''}{'Z' if in_utc else ''}"
    digits = 3 if thousandths else 6
    per_second = 10**digits
    day_of, hour_of, two = _days.get, _HOURS.get, _TWO_DIGITS.get

    def encode(value: Any) -> bytes:
        if type(value) is str and (not in_utc or value[-1:] == "Z"):
            text = value[:-1] if in_utc else value
            first = text[:10]
            day = day_of(first)
            if day is None:
                day = _day(first)
            hour, minute, second = hour_of(text[11:13]), two(text[14:16]), two(text[17:19])
            if day is not None and hour is not None and minute is not None and second is not None and text[10] == "T" and text[13] == text[16] == ":":
                fraction = _fraction(text[19:], digits, may_be_left_out=not thousandths)
                if fraction is not None:
                    return _long((((day * 24 + hour) * 60 + minute) * 60 + second) * per_second + fraction)
        raise Misfit(f"is {_kind(value)} that is no moment as {example}")

    return encode


def _fraction(text: str, digits: int, *, may_be_left_out: bool) -> int | None:
    """Of a second: ``.123456``; left out for 0, where that is how it is written. None for anything else."""
    if not text:
        return 0 if may_be_left_out else None
    if len(text) != digits + 1 or text[0] != "." or not (text.isascii() and text[1:].isdigit()):
        return None
    value = int(text[1:])
    return value if value or not may_be_left_out else None


def _long(value: int) -> bytes:
    """:func:`varint`, faster for moments of our time in microseconds."""
    if _LONG_FROM <= value < _LONG_BELOW:
        zigzag = value << 1
        return PAIRS[zigzag & 0x3FFF] + PAIRS[zigzag >> 14 & 0x3FFF] + PAIRS[zigzag >> 28 & 0x3FFF] + TAILS[zigzag >> 42]
    return varint(value)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "an integer", float: "a number with a fraction", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)
