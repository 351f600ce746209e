"""Request bodies: the bodies that are read, and the words of each refusal."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.errors import CellfeedError, InvalidBody, InvalidRequest
from cellfeed.store.http.log_messages import ScanShardsMessage
from cellfeed.store.http.messages import JSON, MSGPACK, GetCellsMessage
from cellfeed.store.http.server.documents import document_from, message_from
from cellfeed.store.http.server.requests import put_from, put_line, puts_from
from cellfeed.store.limits import BATCH_CELLS_MAX, READ_KEYS_MAX

ROW = UUID(int=7)
GOOD: dict[str, Any] = {
    "row_key": str(ROW),
    "column_name": "BASE",
    "ref_key": 1,
    "body": {"a": [1, "x"]},
}
CELL = new_cell(ROW, "BASE", 1, {"a": [1, "x"]})


def text(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def batch(*items: bytes) -> bytes:
    return b'{"cells":[' + b",".join(items) + b"]}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{]", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not list"),
        (b"{}", "row_key"),
        (text(extra=1), "'extra'"),
        (text(ref_key=1.0), "float"),
        (text(ref_key=True), "bool"),
        (text(ref_key=1 << 63), "64-bit"),
        (text(ref_key="1"), "str"),
        (text(row_key=7), "UUID"),
        (text(column_name=None), "NoneType"),
        (text(column_name="\ud800"), "surrogate"),
        (text(body=[]), "not an object"),
        (text(body=float("nan")), "NaN"),
        (text(body={"x": "\ud800"}), "surrogate"),
        (text(body={"x": 1 << 64}), "64 bits"),
        (text(body={"x": 1}).replace(b'"x": 1', b'"x": 1, "x": 1'), "twice"),
        (text().replace(b'"ref_key": 1', b'"ref_key": 1, "ref_key": 1'), "twice"),
        (text().replace(b'"ref_key": 1', b'"ref_key": 1, "ref\\u005fkey": 1'), "twice"),
        (text() + b"x", "not JSON"),
    ],
)
def test_a_malformed_put_is_refused_alone_in_a_batch_and_in_a_stream(
    content: bytes, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        put_from(content, JSON)
    refused = put_line(content, 16)
    assert isinstance(refused, PutResult)
    assert refused.error is not None
    assert reason in str(refused.error)
    try:
        json.loads(content, parse_constant=int)
    except ValueError:
        return  # not JSON at all: nobody can tell where such an item ends
    items = puts_from(batch(text(), content, text()), JSON, 16)
    assert [items[0], items[2]] == [CELL, CELL]
    assert isinstance(items[1], PutResult)
    assert reason in str(items[1].error)


def test_escapes_in_names_and_bodies_are_read() -> None:
    content = text(column_name='q"\\', body={'k"': 'v"'})
    expected = new_cell(ROW, 'q"\\', 1, {'k"': 'v"'})
    assert put_from(content, JSON) == put_line(content, 16) == expected
    assert puts_from(batch(content, text()), JSON, 16) == [expected, CELL]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"cells":1}',
        b'{"cells":[],"more":1}',
        b'{"cells":[],"cells":[]}',
        b'{"cells":[]',
        b'{"cells":[]}x',
        b'{"cells":[' + b"[" * 100_000,
    ],
)
def test_a_batch_that_is_malformed_as_a_whole_is_refused_as_a_whole(content: bytes) -> None:
    with pytest.raises(InvalidRequest):
        puts_from(content, JSON, 16)


def test_a_batch_beyond_the_limit_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=str(BATCH_CELLS_MAX)):
        puts_from(batch(*[text()] * (BATCH_CELLS_MAX + 1)), JSON, 16)


def test_messagepack_puts_are_read_and_row_keys_may_be_16_bytes() -> None:
    packed = msgpack.packb({"cells": [GOOD, {**GOOD, "row_key": ROW.bytes}]})
    assert puts_from(packed, MSGPACK, 16) == [CELL, CELL]
    assert put_from(msgpack.packb(GOOD), MSGPACK) == CELL


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"x": b"bin"}, "bytes"),
        ({"x": msgpack.ExtType(5, b"x")}, "ExtType"),
        ({"x": msgpack.Timestamp(1)}, "Timestamp"),
        ({"x": float("nan")}, "nan"),
        ({"x": float("inf")}, "inf"),
    ],
)
def test_messagepack_values_that_json_has_no_word_for_are_refused(
    body: object, reason: str
) -> None:
    with pytest.raises(InvalidBody, match=reason):
        put_from(msgpack.packb({**GOOD, "body": body}), MSGPACK)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"\x81\xa5cells",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x81\x01\x02",
        b"\x81\xa1\xff\x01",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\x80\x80",
    ],
)
def test_malformed_messagepack_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest):
        document_from(content, MSGPACK)


def test_a_refused_read_request_names_its_fault() -> None:
    with pytest.raises(InvalidRequest, match="ref_key"):
        message_from(b'{"keys":[{"row_key":"x","column_name":"B"}]}', JSON, GetCellsMessage)
    with pytest.raises(InvalidRequest, match="unknown field"):
        message_from(b'{"locations":[],"extra":1}', JSON, ScanShardsMessage)
    with pytest.raises(InvalidRequest, match="twice"):
        message_from(b'{"locations":[],"locations":[]}', JSON, ScanShardsMessage)
    with pytest.raises(InvalidRequest, match=str(READ_KEYS_MAX)):
        message_from(
            b'{"keys":[' + b",".join([b"1"] * (READ_KEYS_MAX + 1)) + b"]}", JSON, GetCellsMessage
        )


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
bodies = st.dictionaries(
    st.text(),
    st.recursive(
        scalars, lambda deeper: st.lists(deeper) | st.dictionaries(st.text(), deeper), max_leaves=8
    ),
)


@given(st.lists(bodies, max_size=6), st.booleans())
def test_every_way_to_send_cells_reads_the_same(
    given_bodies: list[dict[str, Any]], escaped: bool
) -> None:
    sendable = []
    for body in given_bodies:
        try:
            sendable.append((body, new_cell(ROW, "BASE", 1, body)))
        except InvalidBody:
            continue
    lines = [
        json.dumps({**GOOD, "body": body}, ensure_ascii=escaped).encode() for body, _ in sendable
    ]
    expected = [cell for _, cell in sendable]
    assert puts_from(batch(*lines), JSON, 16) == expected
    assert [put_line(line, 16) for line in lines] == expected
    assert (
        puts_from(
            msgpack.packb({"cells": [{**GOOD, "body": body} for body, _ in sendable]}), MSGPACK, 16
        )
        == expected
    )


@given(st.binary(max_size=200), st.sampled_from([JSON, MSGPACK]))
def test_arbitrary_bytes_are_refused_and_never_break_the_reader(
    content: bytes, media_type: str
) -> None:
    for read in (lambda: puts_from(content, media_type, 16), lambda: put_from(content, media_type)):
        with pytest.raises(CellfeedError):
            read()
    assert not isinstance(put_line(content, 16), NewCell)


@given(st.data())
def test_a_damaged_batch_never_gives_a_cell_that_was_not_sent(data: st.DataObject) -> None:
    whole = bytearray(batch(text(), text(ref_key=2)))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    try:
        items = puts_from(bytes(whole), JSON, 16)
    except InvalidRequest:
        return
    for item in items:
        if isinstance(item, NewCell):
            assert canonical_json.canonical_from_json(item.body_json) == item.body_json
