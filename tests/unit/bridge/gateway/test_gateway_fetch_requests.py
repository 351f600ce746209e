"""A Fetch request is read by hand as the schema library reads it, and refused as that refuses."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_writer

from cellfeed.bridge.gateway.apis import api_01_fetch
from cellfeed.bridge.gateway.apis.advertised import FLEXIBLE_FROM
from cellfeed.bridge.gateway.wire import fetch_request
from cellfeed.bridge.gateway.wire.fetch_request import fetch_of, read_fetch, row_format
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame
from cellfeed.bridge.gateway.wire.protocol import build, read_head, read_request
from tests.support.gateway_samples import sample

_BODY = 13
"""Where it begins, behind the head and its tagged fields."""
VERSIONS = range(api_01_fetch.VERSIONS[0], api_01_fetch.VERSIONS[1] + 1)


def frame_of(version: int, topics: dict[str, list[tuple[int, int]]], **values: Any) -> bytes:
    """``topics``: partitions with their offsets, by a name of one letter."""
    schema = load_request_schema(1, version)

    def named(name: str) -> dict[str, Any]:
        return {"topic": name, "topic_id": UUID(int=ord(name))}

    partitions = {
        name: [
            {
                "partition": partition,
                "current_leader_epoch": partition + 1,
                "fetch_offset": offset,
                "last_fetched_epoch": 5,
                "log_start_offset": 3,
                "partition_max_bytes": 1 << 20,
            }
            for partition, offset in asked
        ]
        for name, asked in topics.items()
    }
    given = {
        "cluster_id": None,
        "replica_id": -1,
        "max_wait": 700,
        "min_bytes": 2,
        "max_bytes": 9_000,
        "isolation_level": 1,
        "session_id": 77,
        "session_epoch": 4,
        "topics": [{**named(name), "partitions": asked} for name, asked in partitions.items()],
        "forgotten_topics_data": [{**named("z"), "partitions": [4, 5]}],
        "rack_id": "rack",
        **values,
    }
    body = BytesIO()
    entity_writer(schema)(body, build(schema, given))
    head = struct.pack(">hhih", 1, version, 9, 2) + b"me"
    return head + (b"\x00" if version >= FLEXIBLE_FROM[1] else b"") + body.getvalue()


def by_the_schema(frame: bytes) -> fetch_request.FetchRequest:
    head = read_head(frame, FLEXIBLE_FROM)
    return fetch_of(read_request(frame, head), head.version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fast_reader_of_requests_agrees_with_the_schemas(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, list[tuple[int, int]]]] = [
        {},
        {"a": []},
        {"a": [(0, 5)]},
        {"a": [(n, n) for n in range(300)], "b": [(1, 2)]},
    ]
    for topics in asked:
        frame = frame_of(version, topics)
        wanted = by_the_schema(frame)
        with monkeypatch.context() as patched:
            patched.setattr(fetch_request, "read_request", None)
            assert read_fetch(frame, read_head(frame, FLEXIBLE_FROM)) == wanted
        assert [
            row_format(version).read(row)[:3:2]
            for _, rows in wanted.topics
            for row in row_format(version).rows(rows)
        ] == [each for asked in topics.values() for each in asked]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_with_every_field_set_is_read_with_the_schemas_help(version: int) -> None:
    _, body = sample(1, version)
    head = struct.pack(">hhih", 1, version, 9, -1)
    frame = head + (b"\x00" if version >= FLEXIBLE_FROM[1] else b"") + body
    assert read_fetch(frame, read_head(frame, FLEXIBLE_FROM)) == by_the_schema(frame)


@given(st.sampled_from(VERSIONS), st.data())
def test_an_invalid_frame_is_refused_without_an_effect(version: int, data: st.DataObject) -> None:
    frame = bytearray(frame_of(version, {"a": [(0, 5), (1, 6)], "b": [(1, 2)]}))
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(_BODY, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(frame[: data.draw(st.integers(_BODY, len(frame)))])
    head = read_head(cut, {})
    if version >= FLEXIBLE_FROM[1]:
        head = head._replace(body_at=head.body_at + 1)
    try:
        wanted = fetch_of(read_request(cut, head), version)
    except MalformedFrame:
        with pytest.raises(MalformedFrame):
            read_fetch(cut, head)
    else:
        assert read_fetch(cut, head) == wanted


def test_a_frame_with_more_elements_than_any_request_may_have_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = frame_of(12, {"a": [(n, 0) for n in range(20)]})
    for module in ("wire.fetch_request", "wire.frame_check"):
        monkeypatch.setattr(f"cellfeed.bridge.gateway.{module}.REQUEST_ELEMENTS_MAX", 10)
    with pytest.raises(MalformedFrame, match="elements"):
        read_fetch(frame, read_head(frame, FLEXIBLE_FROM))
