"""Frames are checked before anything is allocated for them; a frame that is let through is read
exactly."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from kio.index import load_request_schema

from cellfeed.bridge.gateway.apis import advertised
from cellfeed.bridge.gateway.apis.advertised import APIS, FLEXIBLE_FROM
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame, checked_frame
from cellfeed.bridge.gateway.wire.protocol import (
    RequestHead,
    is_flexible,
    read_head,
    read_request,
    write_response,
)
from tests.support.gateway_samples import ALL_VERSIONS, sample
from tests.support.raw_requests import head_bytes


def test_tagged_fields_begin_at_the_versions_of_the_protocols_schemas() -> None:
    assert FLEXIBLE_FROM.keys() == APIS.keys()
    wrong = [
        (key, version)
        for key, version in ALL_VERSIONS
        if is_flexible(key, version) != (version >= FLEXIBLE_FROM[key])
    ]
    assert wrong == []


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_every_advertised_request_is_read_as_it_was_written(
    key: int, version: int, nulls: bool
) -> None:
    entity, body = sample(key, version, nulls=nulls)
    frame = head_bytes(key, version) + body
    head = read_head(frame, FLEXIBLE_FROM)
    assert (head.api_key, head.version, head.correlation_id, head.client_id) == (
        key,
        version,
        7,
        "test",
    )
    assert read_request(frame, head) == entity


@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_a_cut_or_lengthened_request_is_malformed(key: int, version: int) -> None:
    _, body = sample(key, version)
    schema = load_request_schema(key, version)
    for length in range(len(body)):
        with pytest.raises(MalformedFrame):
            checked_frame(schema, body[:length], 0)
    with pytest.raises(MalformedFrame, match="behind the end"):
        checked_frame(schema, body + b"\x00" * 4, 0)


def test_a_lying_count_is_found_before_anything_is_allocated() -> None:
    for count in (0x7FFFFFFF, 100_000_000, 1000):
        with pytest.raises(MalformedFrame, match="array claims"):
            checked_frame(
                load_request_schema(3, 1), struct.pack(">i", count) + b"\x00\x01a" * 10, 0
            )
    with pytest.raises(MalformedFrame, match="array claims"):
        checked_frame(load_request_schema(3, 9), b"\xff\xff\xff\xff\x0f" + b"\x02a" * 10, 0)
    with pytest.raises(MalformedFrame):
        checked_frame(load_request_schema(3, 1), struct.pack(">i", -2), 0)


def test_a_mutated_request_is_either_read_or_malformed() -> None:
    """Every frame that passes the check is safe to read: thousands of mutations, seeded."""
    chance = random.Random(7)
    samples = [
        (key, version, head_bytes(key, version) + sample(key, version)[1])
        for key, version in ALL_VERSIONS
    ]
    read = 0
    for _ in range(20_000):
        _, _, frame = chance.choice(samples)
        mutated = bytearray(frame)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(8, len(mutated))
            match chance.randrange(4):
                case 0:
                    mutated[place] = chance.randrange(256)
                case 1:
                    mutated[place : place + 4] = chance.choice(
                        [
                            b"\x7f\xff\xff\xff",
                            b"\xff\xff\xff\xff",
                            b"\x00\x00\x00\x00",
                            b"\xff\xff\xff\xff\x0f",
                        ]
                    )
                case 2:
                    del mutated[place]
                case _:
                    mutated.insert(place, chance.randrange(256))
            if len(mutated) <= 9:
                break
        try:
            read_request(bytes(mutated), read_head(bytes(mutated), FLEXIBLE_FROM))
            read += 1
        except MalformedFrame:
            pass
    assert 500 < read < 19_500


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\x00\x12\x00\x00\x00\x00\x00\x01",
        b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x7fab",
        b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\x05",
    ],
)
def test_a_damaged_head_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        read_head(frame, FLEXIBLE_FROM)


def test_the_answer_to_api_versions_always_has_the_oldest_head() -> None:
    frame = write_response(
        RequestHead(18, 3, 5, "", 0), {"error_code": 0, "api_keys": [], "throttle_time": 0}
    )
    assert frame[:8] == struct.pack(">ii", len(frame) - 4, 5)
    assert frame[8:10] == b"\x00\x00"


def test_no_api_is_advertised_without_its_file() -> None:
    for each in APIS.values():
        assert each.handle.__module__.startswith(
            f"cellfeed.bridge.gateway.apis.api_{each.key:02d}_"
        )


def test_every_module_of_an_api_registers_its_key_once() -> None:
    files = sorted(path.name for path in Path(advertised.__file__).parent.glob("api_[0-9]*.py"))
    assert [f"api_{key:02}" for key in sorted(APIS)] == [name[:6] for name in files]
    with pytest.raises(ValueError, match="two handlers for API 18"):
        api(18, (0, 0))(APIS[18].handle)
