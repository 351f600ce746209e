"""Frames for the gateway that no client sends: valid requests of every API and version, and those
of real clients, changed at random but repeatably."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.gateway.apis.advertised import APIS
from cellfeed.bridge.gateway.limits import FRAME_BYTES_MAX
from cellfeed.bridge.gateway.topics.topics import Topics
from tests.fuzz.captures import captured_frames
from tests.fuzz.lengths import with_a_lie
from tests.support.gateway_samples import ALL_VERSIONS, SAMPLES, sample
from tests.support.raw_requests import head_bytes

_NUMBERS = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\x7f\xff",
    b"\xff\xff",
]
"""Lengths and counts at the ends of their types; the fifth is the largest compact one."""


_TRIPS = {
    "string": "trips",
    "uuid": Topics("trips", list, {"*": JsonFormat()}).all()[0].topic_id,
    "int32": 0,
}
"""Values that name the first partition of a topic that is there, in its only leader epoch."""


def with_length(frame: bytes) -> bytes:
    """The frame as it goes over the wire."""
    return struct.pack(">i", len(frame)) + frame


def api_versions_request(correlation_id: int) -> bytes:
    """The oldest request that every client may send."""
    return with_length(struct.pack(">hhih", 18, 0, correlation_id, -1))


def expects_no_more(data: bytes) -> bool:
    """Whether the gateway has all that the lengths in ``data`` announce, or a length that no frame
    has: it can answer, or must close."""
    position = 0
    while position < len(data):
        if position + 4 > len(data):
            return False
        [size] = struct.unpack_from(">i", data, position)
        if not 10 <= size <= FRAME_BYTES_MAX:
            return True
        position += 4 + size
    return position == len(data)


@cache
def valid_frames() -> list[bytes]:
    """Requests of real clients, and three of every API and version: for a topic and group that are
    not there, arrays filled; with everything null that may be; and for the first partition of
    ``trips``, so that handlers go all the way."""
    frames = [
        head_bytes(key, version) + sample(key, version, nulls=nulls)[1]
        for key, version in ALL_VERSIONS
        for nulls in (False, True)
    ]
    with patch.dict(SAMPLES, _TRIPS):
        # Three times each, as captured from real clients: a frame that is refused early needs fewer
        # tries than one that goes through a handler.
        frames += 3 * [each.frame for each in captured_frames()]
        return frames + 3 * [
            head_bytes(key, version) + sample(key, version)[1] for key, version in ALL_VERSIONS
        ]


def mutations(chance: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """``count`` times the name of a mutation and the bytes to send, length and all."""
    frames = valid_frames()
    kinds = list(_KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield kind, _KINDS[kind](chance, chance.choice(frames), frames)


def _valid(_chance: random.Random, frame: bytes, _frames: list[bytes]) -> bytes:
    return with_length(frame)


def _cut(chance: random.Random, frame: bytes, _frames: list[bytes]) -> bytes:
    return with_length(frame)[: chance.randrange(len(frame) + 4)]


def _cut_with_a_true_length(chance: random.Random, frame: bytes, _frames: list[bytes]) -> bytes:
    return with_length(frame[: chance.randrange(len(frame))])


def _flipped(chance: random.Random, frame: bytes, _frames: list[bytes]) -> bytes:
    changed = bytearray(frame)
    for _ in range(chance.randint(1, 6)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return with_length(bytes(changed))


def _other_numbers(chance: random.Random, frame: bytes, _frames: list[bytes]) -> bytes:
    changed = bytearray(frame)
    number = chance.choice(_NUMBERS)
    place = chance.randrange(8, len(changed))
    changed[place : place + len(number)] = number
    return with_length(bytes(changed))


def _lying(chance: random.Random, frame: bytes, _frames: list[bytes]) -> bytes:
    return with_length(with_a_lie(chance, frame))


def _other_length(chance: random.Random, frame: bytes, _frames: list[bytes]) -> bytes:
    length = chance.choice(
        [
            0x7FFFFFFF,
            -1,
            -(1 << 31),
            0,
            1,
            FRAME_BYTES_MAX,
            FRAME_BYTES_MAX + 1,
            len(frame) - 1,
            len(frame) + 1,
        ]
    )
    return struct.pack(">i", length) + frame


def _other_api(chance: random.Random, frame: bytes, _frames: list[bytes]) -> bytes:
    key = chance.choice([*APIS, 4, 99, -1, 0x7FFF])
    return with_length(
        struct.pack(">hh", key, chance.choice([0, 1, 5, 12, 17, 99, -1, 0x7FFF])) + frame[4:]
    )


def _spliced(chance: random.Random, frame: bytes, frames: list[bytes]) -> bytes:
    other = chance.choice(frames)
    return with_length(
        frame[: chance.randrange(8, len(frame))] + other[chance.randrange(len(other)) :]
    )


def _behind_a_valid_one(chance: random.Random, frame: bytes, frames: list[bytes]) -> bytes:
    return api_versions_request(1) + _flipped(chance, frame, frames)


def _garbage(chance: random.Random, _frame: bytes, _frames: list[bytes]) -> bytes:
    return chance.randbytes(chance.choice([1, 3, 4, 13, 200, 70_000]))


def _garbage_with_a_length(chance: random.Random, _frame: bytes, _frames: list[bytes]) -> bytes:
    return with_length(chance.randbytes(chance.choice([10, 40, 300, 70_000])))


_KINDS = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _valid,
        _cut,
        _cut_with_a_true_length,
        _flipped,
        _other_numbers,
        _lying,
        _other_length,
        _other_api,
        _spliced,
        _behind_a_valid_one,
        _garbage,
        _garbage_with_a_length,
    )
}
