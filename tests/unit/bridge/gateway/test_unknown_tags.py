"""Tagged fields that a newer client sends are passed over, wherever they stand (KIP-482)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kio.index import load_request_schema

from cellfeed.bridge.gateway.apis.advertised import FLEXIBLE_FROM
from cellfeed.bridge.gateway.limits import CLIENT_ID_BYTES_MAX
from cellfeed.bridge.gateway.wire import frame_check
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame
from cellfeed.bridge.gateway.wire.protocol import RequestHead, read_head, read_request
from tests.support.gateway_samples import ALL_VERSIONS, sample
from tests.support.raw_requests import head_bytes

FLEXIBLE = [(key, version) for key, version in ALL_VERSIONS if version >= FLEXIBLE_FROM[key]]
UNKNOWN = b"\xce\x46\x02ab"
"""Tag 9,038, two bytes."""

FETCH, METADATA = 1, 3


def head_of(key: int, version: int) -> RequestHead:
    return RequestHead(key, version, 7, "test", 0)


@pytest.fixture
def tag_places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Where the tagged fields of a frame that is read begin, and whether those are within another
    tagged field."""
    walk, places, depth = frame_check._walk_tags, [], 0

    def noted(frame: bytes, position: int, walked: Any, known: dict[int, Any]) -> int:
        nonlocal depth
        places.append((position, depth > 0))
        depth += 1
        try:
            return walk(frame, position, walked, known)
        finally:
            depth -= 1

    monkeypatch.setattr(frame_check, "_walk_tags", noted)
    return places


@pytest.mark.parametrize(("key", "version"), FLEXIBLE)
def test_an_unknown_tag_at_any_place_changes_nothing(
    key: int, version: int, tag_places: list[tuple[int, bool]]
) -> None:
    entity, body = sample(key, version)
    assert read_request(body, head_of(key, version)) == entity
    places = [place for place, within in tag_places if not within]
    assert places
    longer = body
    for place in sorted(places, reverse=True):
        one = body[:place] + bytes([body[place] + 1]) + UNKNOWN + body[place + 1 :]
        longer = longer[:place] + bytes([longer[place] + 1]) + UNKNOWN + longer[place + 1 :]
        assert read_request(one, head_of(key, version)) == entity
    assert read_request(longer, head_of(key, version)) == entity


def test_an_unknown_tag_within_a_known_one_changes_nothing() -> None:
    version = 15
    entity, body = sample(FETCH, version)
    # Of the replica: tag 1, 13 bytes: a number, an epoch, no tags.
    state = struct.pack(
        ">iqb", entity.replica_state.replica_id, entity.replica_state.replica_epoch, 0
    )
    field = b"\x01" + bytes([len(state)]) + state
    assert body.count(field) == 1
    longer = state[:-1] + b"\x01" + UNKNOWN
    frame = body.replace(field, b"\x01" + bytes([len(longer)]) + longer)
    assert read_request(frame, head_of(FETCH, version)) == entity
    schema = load_request_schema(FETCH, version)
    checked = frame_check.checked_frame(schema, frame, 0)
    assert frame_check.checked_frame(schema, checked, 0) == checked == body, "sizes fit again"
    wrong = body.replace(field, b"\x01" + bytes([len(longer) - 1]) + longer)
    with pytest.raises(MalformedFrame):
        read_request(wrong, head_of(FETCH, version))


@pytest.mark.parametrize(
    "tags",
    [
        b"\x01\x4d",
        b"\x01\x4d\x03ab",
        b"\x02\x4d\x02ab",
        b"\xff\xff\xff\xff\x0f",
        b"\x01\x4d\xff\xff\xff\xff\x0f",
    ],
)
def test_tags_that_are_cut_or_lie_are_malformed(tags: bytes) -> None:
    _, body = sample(METADATA, 9)
    with pytest.raises(MalformedFrame):
        read_request(body[:-1] + tags, head_of(METADATA, 9))


def test_a_head_with_tags_is_read_as_one_without() -> None:
    plain = head_bytes(METADATA, 9)
    assert plain.endswith(b"\0")
    head = read_head(plain[:-1] + b"\x02" + UNKNOWN + b"\x4d\x00", FLEXIBLE_FROM)
    assert head[:4] == read_head(plain, FLEXIBLE_FROM)[:4]
    assert head.body_at == len(plain) + len(UNKNOWN) + 2
    with pytest.raises(MalformedFrame):
        read_head(plain[:-1] + b"\x02" + UNKNOWN, FLEXIBLE_FROM)


@pytest.mark.parametrize("name", [b"\xff" * 32_767, b"a" * 32_767, "ö".encode() * 200])
def test_a_long_client_id_is_cut(name: bytes) -> None:
    frame = struct.pack(">hhih", METADATA, 0, 7, len(name)) + name + struct.pack(">i", 0)
    head = read_head(frame, FLEXIBLE_FROM)
    assert 0 < len(head.client_id) <= CLIENT_ID_BYTES_MAX
    assert head.body_at == len(frame) - 4
