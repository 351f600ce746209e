"""Zigzag variable-length integers: the same encoding in Avro's binary form and in Kafka's record
batches.

A look-up costs a tenth of a loop. So values of one or two bytes come from a table; lengths and
offset deltas are nearly always such. Longer encodings are put together from tables of two-byte
pieces.
"""

from __future__ import annotations

from typing import Final

from cellfeed.store.errors import DataDamaged

_TABLE_SIZE: Final = 1 << 13
_TAILS_SIZE: Final = 1 << 12


def _encode(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def uvarint(value: int) -> bytes:
    """An unsigned number in as many bytes as it needs, without the zigzag form."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


VARINTS: Final = [_encode(value) for value in range(_TABLE_SIZE)]
"""Encodings of 0 … 8191, all that take one or two bytes; hot loops index it directly when they know
that a value is from 0 to below ``SMALL``."""

SMALL: Final = _TABLE_SIZE

PAIRS: Final = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]
"""Two bytes of a longer encoding, both saying that more follows: index it with 14 bits of the
zigzag form."""

TAILS: Final = [uvarint(value) for value in range(_TAILS_SIZE)]
"""The bytes that follow a pair: index it with the bits of the zigzag form above the pair's 14."""

MIDDLE: Final = _TAILS_SIZE << 13
"""From ``SMALL`` to below this (33 million), an encoding is one pair and one tail."""

_tails: dict[int, bytes] = {}
_MOMENT_TAILS_MAX: Final = 10_000
"""Tails of moments that are kept: each serves two minutes of a log, so this is two weeks of it in a
megabyte."""


def varint(value: int) -> bytes:
    """The encoding of a signed 64-bit integer."""
    if 0 <= value < SMALL:
        return VARINTS[value]
    if SMALL <= value < MIDDLE:
        return PAIRS[value << 1 & 0x3FFF] + TAILS[value >> 13]
    return _encode(value)


def varint_of_moment(microseconds: int) -> bytes:
    """:func:`varint` of microseconds since 1970, five times as fast: moments of one batch share all
    but their low 28 bits."""
    zigzag = microseconds << 1
    if not 1 << 28 <= zigzag < 1 << 62:
        return varint(microseconds)
    high = zigzag >> 28
    tail = _tails.get(high)
    if tail is None:
        if len(_tails) >= _MOMENT_TAILS_MAX:
            _tails.clear()
        tail = _tails[high] = uvarint(high)
    return PAIRS[zigzag & 0x3FFF] + PAIRS[zigzag >> 14 & 0x3FFF] + tail


def read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """The value at ``position`` and the position behind it. Raises DataDamaged when it is cut,
    beyond 64 bits or not in its shortest form.

    No writer makes longer forms; since they are refused, every accepted varint is byte for byte the
    encoder's.
    """
    try:
        byte = buffer[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        zigzag, shift = byte & 0x7F, 7
        while True:
            position += 1
            byte = buffer[position]
            zigzag |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                break
    except IndexError:
        raise DataDamaged(f"a variable-length integer is cut at byte {position}") from None
    if byte >= 0x80 or zigzag >> 64:
        raise DataDamaged(f"a variable-length integer goes beyond 64 bits at byte {position}")
    if not byte:
        raise DataDamaged(
            f"a variable-length integer is longer than it needs to be at byte {position}"
        )
    return (zigzag >> 1) ^ -(zigzag & 1), position + 1
