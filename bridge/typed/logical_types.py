"""Avro's logical types out of text: UUIDs, decimals, dates and moments, each in one form only, so
that a reader gets the text as it was put. The forms are in the table of ``body_encoder.py``."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Any, Final
from uuid import UUID

from cellfeed.bridge.events.varints import PAIRS, TAILS, VARINTS, varint
from cellfeed.bridge.typed.avro_types import AvroType
from cellfeed.bridge.typed.mismatch import SchemaMismatch, kind_of

Encode = Callable[[Any], bytes]

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

_days: dict[Any, int] = {}
_DAYS_KEPT_MAX: Final = 10_000
"""Days that were read and are kept: 27 years, and a bound on memory."""

_TWO_DIGITS: Final = {f"{number:02}": number for number in range(60)}
_HOURS: Final = {f"{number:02}": number for number in range(24)}
_LONG_FROM: Final = 1 << 41
_LONG_BELOW: Final = 1 << 53
"""Longs that take three pairs and a tail: in microseconds from January 1970 to the year 2255."""


def logical_encoder(avro: AvroType) -> Encode:
    """Of a type that has a logical type; raises SchemaMismatch for a value that does not fit."""
    match avro.logical:
        case "uuid":
            return _uuid
        case "decimal":
            return _decimal(avro)
        case "date":
            return _date
        case logical:
            return _moment(
                in_utc=not logical.startswith("local-"), thousandths=logical.endswith("millis")
            )


def _uuid(value: Any) -> bytes:
    try:
        if type(value) is str and str(UUID(value)) == value:
            return VARINTS[36] + value.encode()
    except ValueError:
        pass
    raise SchemaMismatch(f"is {kind_of(value)} that is no UUID in lower case with hyphens")


def _decimal(avro: AvroType) -> Encode:
    form = re.compile(r"-?(?:0|[1-9][0-9]*)" + (rf"\.[0-9]{{{avro.scale}}}" if avro.scale else ""))
    beyond = 10**avro.precision

    def encode(value: Any) -> bytes:
        # The length first: the digits of longer text are never made a number.
        if (
            type(value) is not str
            or len(value) > avro.precision + 3
            or form.fullmatch(value) is None
        ):
            raise SchemaMismatch(
                f"is {kind_of(value)} that is no decimal with {avro.scale} digits behind the point"
                " (as text)"
            )
        unscaled = int(value.replace(".", ""))
        if abs(unscaled) >= beyond or (not unscaled and value[0] == "-"):
            raise SchemaMismatch(f"is {value[:40]}, which is no {avro}")
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
        raise SchemaMismatch(f"is {kind_of(value)} that is no date as 2019-03-23")
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
            if (
                day is not None
                and hour is not None
                and minute is not None
                and second is not None
                and text[10] == "T"
                and text[13] == text[16] == ":"
            ):
                fraction = _fraction(text[19:], digits, may_be_left_out=not thousandths)
                if fraction is not None:
                    return _long(
                        (((day * 24 + hour) * 60 + minute) * 60 + second) * per_second + fraction
                    )
        raise SchemaMismatch(f"is {kind_of(value)} that is no moment as {example}")

    return encode


def _fraction(text: str, digits: int, *, may_be_left_out: bool) -> int | None:
    """Of a second: ``.123456``; left out for 0, where that is how it is written. None for anything
    else."""
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
        return (
            PAIRS[zigzag & 0x3FFF]
            + PAIRS[zigzag >> 14 & 0x3FFF]
            + PAIRS[zigzag >> 28 & 0x3FFF]
            + TAILS[zigzag >> 42]
        )
    return varint(value)
