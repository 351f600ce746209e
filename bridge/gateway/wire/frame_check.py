"""A look at the shape of a request before anything is allocated for it.

kio reserves room for as many array elements as a frame claims, so four hostile bytes could end the
process. The walk here follows the same schema (kio's dataclasses) and counts the bytes of every
field against those that are there. It lets only frames through whose every length and count is
true.

Tagged fields that are not known here are passed over, as KIP-482 says: a newer client may send
them. kio has no place for them, so the walk cuts them out of the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, get_args

from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

from cellfeed.bridge.events.varints import uvarint
from cellfeed.bridge.gateway.limits import REQUEST_ELEMENTS_MAX

_FIXED: Final = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_METADATA_SPARE_BYTES: Final = 3
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class MalformedFrame(Exception):
    """A frame that contradicts its head. Costs its sender the connection."""


class _Walked:
    """One walk over a frame: array elements that it may still have, and bytes to be replaced, each
    with the places where they start and end."""

    def __init__(self) -> None:
        self.elements_left = REQUEST_ELEMENTS_MAX
        self.replaced: list[tuple[int, int, bytes]] = []


Walk = Callable[[bytes, int, _Walked], int]
"""Position of a field to the position behind it; raises MalformedFrame."""


def checked_frame(entity_type: type[Any], frame: bytes, position: int) -> bytes:
    """The frame without tagged fields that are not known. Raises MalformedFrame unless it is, from
    ``position`` to its end, exactly one ``entity_type``.

    librdkafka, when it asks for all topics, leaves the four bytes that it kept free for their
    number in place of one; brokers look at no bytes behind a request.
    """
    walked = _Walked()
    end = entity_walk(entity_type)(frame, position, walked)
    spare = (
        _METADATA_SPARE_BYTES
        if entity_type.__name__ == "MetadataRequest" and entity_type.__flexible__
        else 0
    )
    if not end <= len(frame) <= end + spare:
        raise MalformedFrame(f"{len(frame) - end} bytes behind the end of a {entity_type.__name__}")
    if not walked.replaced:
        return frame
    parts, at = [], 0
    for start, after, instead in sorted(walked.replaced):
        parts += [frame[at:start], instead]
        at = after
    return b"".join([*parts, frame[at:]])


def entity_walk(entity_type: type[Any]) -> Walk:
    """The walk over one kio entity, made once."""
    if entity_type not in _walks:
        _walks[entity_type] = _make_entity_walk(entity_type)
    return _walks[entity_type]


_walks: dict[type[Any], Walk] = {}


def _make_entity_walk(entity_type: type[Any]) -> Walk:
    flexible = bool(entity_type.__flexible__)
    plain, tagged = [], {}
    for field in fields(entity_type):
        tag = get_field_tag(field)
        if tag is None:
            plain.append(_field_walk(field, flexible))
        else:
            tagged[int(tag)] = _field_walk(field, flexible, tagged=True)

    def walk(frame: bytes, position: int, walked: _Walked) -> int:
        for step in plain:
            position = step(frame, position, walked)
        return _walk_tags(frame, position, walked, tagged) if flexible else position

    return walk


def _field_walk(field: Any, flexible: bool, *, tagged: bool = False) -> Walk:
    kind = classify_field(field)
    if isinstance(kind, EntityTupleField):
        return _array_walk(entity_walk(kind.type_), flexible, _may_be_null(field))
    if isinstance(kind, EntityField):
        return (
            _nullable_walk(entity_walk(kind.type_))
            if is_optional(field) and not tagged
            else entity_walk(kind.type_)
        )
    primitive = _primitive_walk(get_schema_field_type(field), flexible)
    return _array_walk(primitive, flexible, _may_be_null(field)) if kind.is_array else primitive


def _may_be_null(array: Any) -> bool:
    # Of the array itself: kio's is_optional looks at its elements.
    return type(None) in get_args(array.type)


def _primitive_walk(kafka_type: str, flexible: bool) -> Walk:
    if kafka_type in _FIXED:
        size = _FIXED[kafka_type]
        return lambda frame, position, _: _within(frame, position, size)
    if flexible:
        return _walk_compact_bytes
    return _walk_string if kafka_type == "string" else _walk_bytes


def _array_walk(element: Walk, flexible: bool, nullable: bool) -> Walk:
    smallest = -1 if nullable else 0

    def walk(frame: bytes, position: int, walked: _Walked) -> int:
        if flexible:
            count, position = read_uvarint(frame, position)
            count -= 1
        else:
            [count] = _INT32.unpack(frame[position : (after := _within(frame, position, 4))])
            position = after
        # Every element has at least one byte.
        if not smallest <= count <= len(frame) - position:
            raise MalformedFrame(
                f"an array claims {count} elements in {len(frame) - position} bytes"
            )
        walked.elements_left -= max(count, 0)
        if walked.elements_left < 0:
            raise MalformedFrame(f"more than {REQUEST_ELEMENTS_MAX} array elements in one request")
        for _ in range(count):
            position = element(frame, position, walked)
        return position

    return walk


def _nullable_walk(entity: Walk) -> Walk:
    def walk(frame: bytes, position: int, walked: _Walked) -> int:
        after = _within(frame, position, 1)
        return after if frame[position] == 0xFF else entity(frame, after, walked)

    return walk


def _walk_tags(frame: bytes, position: int, walked: _Walked, known: dict[int, Walk]) -> int:
    count_at = position
    count, position = read_uvarint(frame, position)
    if count > len(frame) - position:
        raise MalformedFrame(f"{count} tagged fields in {len(frame) - position} bytes")
    count_end, unknown = position, 0
    for _ in range(count):
        tag_at = position
        tag, size_at = read_uvarint(frame, position)
        size, position = read_uvarint(frame, size_at)
        end = _within(frame, position, size)
        if tag not in known:
            unknown += 1
            walked.replaced.append((tag_at, end, b""))
        else:
            before = len(walked.replaced)
            if known[tag](frame, position, walked) != end:
                raise MalformedFrame(f"tagged field {tag} is not of its own size")
            if inner := walked.replaced[before:]:
                less = sum(after - start - len(instead) for start, after, instead in inner)
                walked.replaced.append((size_at, position, uvarint(size - less)))
        position = end
    if unknown:
        walked.replaced.append((count_at, count_end, uvarint(count - unknown)))
    return position


def behind_tags(frame: bytes, position: int) -> int:
    """The position behind tagged fields, none of which is known. Raises MalformedFrame."""
    return _walk_tags(frame, position, _Walked(), {})


def _walk_string(frame: bytes, position: int, _: _Walked) -> int:
    after = _within(frame, position, 2)
    [size] = _INT16.unpack(frame[position:after])
    return after if size == -1 else _within(frame, after, size)


def _walk_bytes(frame: bytes, position: int, _: _Walked) -> int:
    after = _within(frame, position, 4)
    [size] = _INT32.unpack(frame[position:after])
    return after if size == -1 else _within(frame, after, size)


def _walk_compact_bytes(frame: bytes, position: int, _: _Walked) -> int:
    size, position = read_uvarint(frame, position)
    return position if size == 0 else _within(frame, position, size - 1)


def read_uvarint(frame: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits and the position behind it."""
    value = shift = 0
    while True:
        if position >= len(frame) or shift > 28:
            raise MalformedFrame("a variable-length number is cut or too long")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _within(frame: bytes, position: int, size: int) -> int:
    if size < 0 or position + size > len(frame):
        raise MalformedFrame(f"a field of {size} bytes at byte {position} of {len(frame)}")
    return position + size
