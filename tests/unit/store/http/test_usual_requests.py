"""Which requests are taken for usual ones: never one that another reader of HTTP would divide
otherwise, or that is to be refused."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.http.server.usual_requests import UsualHeads, UsualRequest
from cellfeed.store.security.callers import TRUSTED
from tests.support.open_callers import open_callers

LINE = b"POST /v1/trips/cell HTTP/1.1\r\n"
HISTORY = b"11111111111111111111111111111111"
ROW = UUID(int=0xFEED)
PUT = json.dumps(
    {"row_key": str(ROW), "column_name": "BASE", "ref_key": 1, "body": {"n": 1, "a": "x"}}
).encode()
FIELDS = (
    b"host: 127.0.0.1:8080",
    b"accept: application/json",
    b"cellfeed-request: 0123456789abcdef",
    b"content-type: application/json",
)


def request(
    *fields: bytes, content: bytes = PUT, length: bytes | None = None, line: bytes = LINE
) -> bytes:
    told = b"%d" % len(content) if length is None else length
    return b"%b%b\r\ncontent-length: %b\r\n\r\n%b" % (line, b"\r\n".join(fields), told, content)


USUAL = request(*FIELDS)


class OneMessage:
    """The reading of the same bytes by httptools."""

    def __init__(self, data: bytes) -> None:
        self.whole = 0
        self.body = b""
        httptools.HttpRequestParser(self).feed_data(data)

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.whole += 1


def heads() -> UsualHeads:
    return UsualHeads({b"/v1/trips/cell", b"/v1/trips/other"}.__contains__, HISTORY, open_callers())


def taken(data: bytes) -> UsualRequest | None:
    return heads().request(data)


@pytest.mark.parametrize(
    "data",
    [
        USUAL,
        request(b"Host: localhost", b"Content-Type: application/json"),
        request(*FIELDS, b"user-agent: curl/8.1 (x; y)", b"accept-encoding: gzip, deflate"),
        request(*FIELDS, b"cellfeed-history: " + HISTORY),
        request(b"content-type: application/json"),
    ],
)
def test_a_whole_request_with_nothing_unusual_in_its_head_is_taken(data: bytes) -> None:
    assert taken(data) == UsualRequest(
        b"/v1/trips/cell", b"0123456789abcdef" if b"cellfeed-request" in data else b"", PUT, TRUSTED
    )


@pytest.mark.parametrize(
    "data",
    [
        USUAL[:-1],
        USUAL + b"P",
        USUAL + USUAL,
        USUAL[:60],
        b"\r\n" + USUAL,
        request(*FIELDS, line=b"POST /v1/other/cell HTTP/1.1\r\n"),
        request(*FIELDS, line=b"POST /v1/trips/cell HTTP/1.0\r\n"),
        request(*FIELDS, line=b"POST /v1/trips/cell?x=1 HTTP/1.1\r\n"),
        request(*FIELDS, line=b"PUT /v1/trips/cell HTTP/1.1\r\n"),
        request(*FIELDS, length=b"+%d" % len(PUT)),
        request(*FIELDS, length=b"0%d" % len(PUT)),
        request(*FIELDS, b"content-length: %d" % len(PUT)),
        request(*FIELDS, b"Content-Length: 0"),
        request(*FIELDS, b"transfer-encoding: chunked"),
        request(*FIELDS, b"expect: 100-continue"),
        request(*FIELDS, b"connection: close"),
        request(*FIELDS, b"upgrade: websocket"),
        request(*FIELDS, b"trailer: x"),
        request(*FIELDS, b"content-encoding: gzip"),
        request(*FIELDS, b"host: 127.0.0.1"),
        request(*FIELDS[1:], b"host: example.org"),
        request(*FIELDS[:3]),
        request(*FIELDS[:3], b"content-type: text/plain"),
        request(*FIELDS[:3], b"content-type: application/msgpack"),
        request(FIELDS[0], b"accept: application/msgpack", FIELDS[3]),
        request(*FIELDS, b"cellfeed-history: " + HISTORY[::-1].replace(b"1", b"2")),
        request(FIELDS[0], b"cellfeed-request: " + b"x" * 65, FIELDS[3]),
        request(*FIELDS, b"user-agent: a\r\n b"),
        request(*FIELDS, b"user-agent: a\nhost: b"),
        request(*FIELDS, b"user-agent: a\rb"),
        request(*FIELDS, b"user-agent: a\0b"),
        request(*FIELDS, b"user-agent : a"),
        request(*FIELDS, b"user-agent:a"),
        request(*FIELDS, b"user-agent: a "),
        request(*FIELDS, line=b"POST /v1/trips/%63ell HTTP/1.1\r\n"),
        request(*FIELDS, line=b"POST  /v1/trips/cell HTTP/1.1\r\n"),
        request(*FIELDS, line=b"POST /v1/trips/cell HTTP/1.1\n"),
        request(*FIELDS, line=b"POST http://localhost/v1/trips/cell HTTP/1.1\r\n"),
    ],
)
def test_unusual_requests_are_left_to_the_reader_of_all_requests(data: bytes) -> None:
    one = heads()
    assert one.request(data) is None
    assert one.request(USUAL) is not None  # and earlier requests change nothing
    assert one.request(data) is None


def test_a_remembered_head_is_not_applied_to_another_length_number_or_path() -> None:
    one = heads()
    assert one.request(USUAL) is not None
    longer = PUT.replace(b"BASE", b"LONGER")
    assert one.request(
        request(*FIELDS[:2], b"cellfeed-request: 7", FIELDS[3], content=longer)
    ) == UsualRequest(b"/v1/trips/cell", b"7", longer, TRUSTED)
    assert one.request(request(*FIELDS, content=longer, length=b"%d" % len(PUT))) is None
    assert one.request(request(*FIELDS, length=b"%d" % len(longer))) is None
    other = one.request(request(*FIELDS, line=b"POST /v1/trips/other HTTP/1.1\r\n"))
    assert other is not None
    assert other.path == b"/v1/trips/other"
    assert one.request(request(*FIELDS, line=b"POST /v1/trips/none HTTP/1.1\r\n")) is None


@given(st.data())
def test_a_request_on_the_fast_path_is_one_whole_message_to_httptools(data: Any) -> None:
    raw = bytearray(USUAL)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        kind = data.draw(st.sampled_from(["change", "insert", "remove", "line", "double"]))
        if kind == "change":
            raw[place] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            raw[place:place] = data.draw(st.sampled_from([b"\r\n", b"\n", b" ", b":", b"1", b"\0"]))
        elif kind == "line":
            raw[len(LINE) : len(LINE)] = data.draw(
                st.sampled_from(
                    [
                        b"accept: a\r\n",
                        b"x: y\r\n",
                        b"transfer-encoding: chunked\r\n",
                        b"expect: x\r\n",
                    ]
                )
            )
        elif kind == "double":
            raw += raw[place:]
        else:
            del raw[place : place + 3]
    if taken(bytes(raw)) is not None:
        other = OneMessage(bytes(raw))
        assert other.whole == 1
        assert raw.endswith(b"\r\n\r\n" + other.body)
