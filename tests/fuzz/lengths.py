"""Where in a request its lengths and counts are, so that each can be made to lie by itself. The
walk is by Kafka's schemas, over requests that are whole."""

from __future__ import annotations

import random
import struct
from dataclasses import fields
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

from cellfeed.bridge.gateway.wire.frame_check import _FIXED, read_uvarint
from cellfeed.bridge.gateway.wire.protocol import is_flexible

_FORMS: Final = {"int16": struct.Struct(">h"), "int32": struct.Struct(">i")}
_HEAD_BYTES: Final = 8


class Place(NamedTuple):
    """A length or a count. ``form``: int16, int32 or uvarint (one more than the length meant, or
    plain for numbers of tags and their sizes)."""

    at: int
    size: int
    form: str
    value: int


def length_places(frame: bytes) -> list[Place]:
    """Those of a request without its own length in front, in order."""
    key, version = struct.unpack_from(">hh", frame)
    walk = _Walk(frame, _HEAD_BYTES)
    walk.text_behind("int16")
    if is_flexible(key, version):
        walk.tags()
    walk.entity(load_request_schema(key, version))
    if walk.at > len(frame):
        raise ValueError(f"the request is not whole: {frame.hex()}")
    return walk.found


def with_a_lie(chance: random.Random, frame: bytes) -> bytes:
    """The frame with one of its lengths or counts made another number, and nothing else."""
    place = chance.choice(length_places(frame))
    return frame[: place.at] + _lie(chance, place) + frame[place.at + place.size :]


def _lie(chance: random.Random, place: Place) -> bytes:
    if place.form == "uvarint":
        if chance.random() < 0.1:
            # Beyond 32 bits, or never at an end.
            return chance.choice(
                [b"\x80" * 5 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80\x80\x80\x80\x00"]
            )
        return _uvarint(_another(chance, place.value, 0, (1 << 32) - 1))
    bits = 8 * place.size - 1
    return _FORMS[place.form].pack(_another(chance, place.value, -(1 << bits), (1 << bits) - 1))


def _another(chance: random.Random, value: int, least: int, most: int) -> int:
    near = [value - 1, value + 1, value - 2, value + 2, 2 * value, value + 100, value // 2]
    ends = [least, least + 1, -1, 0, 1, most, most - 1, 1 << 15, 1 << 20, 1 << 24]
    return chance.choice(
        [each for each in (*near, *ends) if each != value and least <= each <= most]
    )


def _uvarint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


class _Walk:
    def __init__(self, frame: bytes, at: int) -> None:
        self._frame = frame
        self.at = at
        self.found: list[Place] = []

    def entity(self, schema: type[Any]) -> None:
        flexible = bool(schema.__flexible__)
        for field in fields(schema):
            if get_field_tag(field) is None:
                self._field(field, flexible)
        if flexible:
            self.tags()

    def tags(self) -> None:
        for _ in range(self._number("uvarint")):
            self.at = read_uvarint(self._frame, self.at)[1]
            size = self._number("uvarint")
            self.at += size

    def text_behind(self, form: str) -> None:
        """A length and as many bytes; none of them behind a length that stands for null."""
        size = max(self._number(form) - (form == "uvarint"), 0)
        self.at += size

    def _field(self, field: Any, flexible: bool) -> None:
        kind = classify_field(field)
        if isinstance(kind, EntityTupleField):
            for _ in range(self._count(flexible)):
                self.entity(kind.type_)
        elif isinstance(kind, EntityField):
            if is_optional(field):
                self.at += 1
                if self._frame[self.at - 1] == 0xFF:
                    return
            self.entity(kind.type_)
        else:
            for _ in range(self._count(flexible) if kind.is_array else 1):
                self._primitive(get_schema_field_type(field), flexible)

    def _primitive(self, kafka_type: str, flexible: bool) -> None:
        if kafka_type in _FIXED:
            self.at += _FIXED[kafka_type]
        else:
            self.text_behind(
                "uvarint" if flexible else "int16" if kafka_type == "string" else "int32"
            )

    def _count(self, flexible: bool) -> int:
        return max(self._number("uvarint") - 1, 0) if flexible else max(self._number("int32"), 0)

    def _number(self, form: str) -> int:
        at = self.at
        if form == "uvarint":
            value, self.at = read_uvarint(self._frame, at)
        else:
            [value] = _FORMS[form].unpack_from(self._frame, at)
            self.at += _FORMS[form].size
        self.found.append(Place(at, self.at - at, form, value))
        return value
