"""Parts of a worker by themselves: bounds of its requests, and streams that end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import (
    BodyTooLarge,
    CellfeedError,
    InvalidLocation,
    InvalidRequest,
    OutcomeUnknown,
    StorageUnavailable,
)
from cellfeed.store.http.follow_messages import FollowMessage
from cellfeed.store.http.messages import JSON, GetLatestMessage
from cellfeed.store.http.server import direct, follow, follow_heads, put_stream
from cellfeed.store.http.server.bodies import read_body
from cellfeed.store.http.server.documents import message_from
from cellfeed.store.http.server.put_stream import LineSplitter, PutStream
from cellfeed.store.http.server.query import check_query_string, location_from
from cellfeed.store.http.server.requests import puts_from
from cellfeed.store.http.server.responses import as_put_error, wants_msgpack
from cellfeed.store.limits import BATCH_CELLS_MAX, READ_KEYS_MAX
from cellfeed.store.security.callers import TRUSTED
from tests.support.open_callers import open_callers

# --- bounds ---------------------------------------------------------------------------------------


def body(pieces: Sequence[bytes], bytes_max: int, length: int | None = None) -> bytes:
    left = list(pieces)
    headers = [] if length is None else [(b"content-length", b"%d" % length)]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return asyncio.run(read_body({"headers": headers}, receive, bytes_max))


def test_a_body_has_at_most_the_limit_of_bytes() -> None:
    assert body([b"12345"], 5) == body([b"12", b"345"], 5) == body([b"12345"], 5, 5) == b"12345"
    for pieces, length in (([b"123456"], None), ([b"123", b"456"], None), ([b""], 6)):
        with pytest.raises(BodyTooLarge):
            body(pieces, 5, length)


def test_a_batch_has_at_most_the_limit_of_cells() -> None:
    def batch(count: int) -> bytes:
        cell = {"row_key": str(UUID(int=1)), "column_name": "A", "ref_key": 1, "body": {}}
        return json.dumps({"cells": [cell] * count}).encode()

    assert len(puts_from(batch(BATCH_CELLS_MAX), JSON, 16)) == BATCH_CELLS_MAX
    with pytest.raises(InvalidRequest, match="at most"):
        puts_from(batch(BATCH_CELLS_MAX + 1), JSON, 16)


def test_a_read_has_at_most_the_limit_of_keys() -> None:
    def keys(count: int) -> bytes:
        key = {"row_key": str(UUID(int=1)), "column_name": "A"}
        return json.dumps({"keys": [key] * count}).encode()

    assert len(message_from(keys(READ_KEYS_MAX), JSON, GetLatestMessage).keys) == READ_KEYS_MAX
    with pytest.raises(InvalidRequest, match="at most"):
        message_from(keys(READ_KEYS_MAX + 1), JSON, GetLatestMessage)


def test_a_parameter_stands_once() -> None:
    check_query_string(b"limit=1&location=2", ("limit", "location"))
    with pytest.raises(InvalidRequest, match="parameter limit is given twice"):
        check_query_string(b"limit=1&limit=1", ("limit", "location"))


@pytest.mark.parametrize("given", ["²", "٣", "", "-1", "1" * 20])
def test_text_that_is_no_location_is_refused_in_words(given: str) -> None:
    with pytest.raises(InvalidLocation):
        location_from(given)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (b"application/msgpack", True),
        (b"application/msgpack, application/json", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_messagepack_is_sent_only_to_clients_that_accept_it(accept: bytes, wanted: bool) -> None:
    assert wants_msgpack({"headers": [(b"accept", accept)]}) is wanted


def test_an_error_that_nobody_raised_on_purpose_leaves_a_put_open() -> None:
    assert isinstance(as_put_error(MemoryError()), OutcomeUnknown)
    away = StorageUnavailable("away")
    assert as_put_error(away) is away


# --- streams of puts ------------------------------------------------------------------------------


def test_a_line_that_is_too_long_costs_itself_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(put_stream, "LINE_BYTES_MAX", 5)
    too_long, lines = put_stream._TOO_LONG, LineSplitter()
    assert lines.feed(b"12345\n123456\nab") == [b"12345", too_long]
    assert lines.feed(b"c\n123") == [b"abc"]
    assert lines.feed(b"456") == []
    assert lines.rest() == [too_long]
    assert lines.feed(b"x\n") == [b"x"]
    assert lines.rest() == []


def test_a_stream_that_a_closing_worker_ends_has_an_end_message() -> None:
    sent: list[Any] = []

    async def answered() -> None:
        closing = asyncio.Event()
        closing.set()

        async def send(message: Any) -> None:
            sent.append(message)

        stream = PutStream(16, cast("Any", None), closing)
        await stream.answer(lambda: asyncio.sleep(3_600, {}), send)

    asyncio.run(answered())
    [line] = b"".join(each.get("body", b"") for each in sent).splitlines()
    result = json.loads(line)
    assert (result["outcome"], result["error"]["error"]) == ("failed", "storage_unavailable")


# --- direct requests ------------------------------------------------------------------------------


def test_direct_requests_count_while_they_are_under_way_and_keep_to_the_limit() -> None:
    waiting: list[Any] = []

    def handler(_content: bytes, respond: Any, _caller: object) -> bool:
        waiting.append(respond)
        return True

    metrics = SimpleNamespace(in_flight=0, answered=lambda *_: None)
    requests = direct.DirectRequests(
        lambda _: ("put_one", handler), b"", cast("Any", metrics), 2, open_callers()
    )
    connection = SimpleNamespace(ends=False, answered=lambda _: None)
    heads = SimpleNamespace(
        request=lambda _: SimpleNamespace(path=b"/", number=b"", content=b"", caller=TRUSTED)
    )

    def take() -> bool:
        return requests.take(b"", cast("Any", heads), cast("Any", connection))

    assert [take(), take(), take()] == [True, True, False]
    assert metrics.in_flight == 2
    waiting[0](b"{}")
    assert (metrics.in_flight, take()) == (1, True)
    waiting[1](StorageUnavailable("away"))
    waiting[2](b"{}")
    assert metrics.in_flight == 0


# --- followers ------------------------------------------------------------------------------------


def test_a_follower_begins_in_one_place() -> None:
    message = FollowMessage(token="h:0.1", start="earliest")
    with pytest.raises(InvalidRequest, match="with a token or with start, not with both"):
        follow._wanted(message)


def test_a_piece_that_was_not_read_is_not_passed() -> None:
    async def full(*_: Any) -> None:
        raise StorageUnavailable("the pool is full")

    route = follow.FollowRoute(
        cast("Any", SimpleNamespace(engine=None)),
        cast("Any", SimpleNamespace(run=full)),
        cast("Any", None),
        open_callers(),
    )
    asked = cast("Any", SimpleNamespace(columns=None))
    [piece] = asyncio.run(
        route._pieces([cast("LogRange", SimpleNamespace(shard=3, location=7))], asked)
    )
    assert (piece.shard, piece.next_location, list(piece.cells)) == (3, 7, [])
    assert isinstance(piece.error, StorageUnavailable)


class Heads:
    """``failures``: looks that fail before one works."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.looks = 0

    async def refresh(self) -> None:
        self.looks += 1
        if self.looks <= self.failures:
            raise StorageUnavailable("away")


def test_a_look_at_the_heads_that_failed_is_made_again_and_its_reason_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    heads = Heads(failures=2)
    enough = asyncio.Event()

    def looked(because: str) -> None:
        said.append(because)
        if len(said) == 4:
            enough.set()

    async def look() -> None:
        opened = follow_heads._Open(cast("Any", SimpleNamespace(change_token=lambda: 5)), looked)
        opened.heads = cast("Any", heads)
        polling = asyncio.ensure_future(opened._poll())
        await enough.wait()
        polling.cancel()
        opened._executor.shutdown()

    monkeypatch.setattr(follow_heads, "POLL_INTERVAL_S", 0)
    monkeypatch.setattr(follow_heads, "LogHeads", lambda *_: None)
    asyncio.run(asyncio.wait_for(look(), 30))
    assert said[:4] == ["away", "away", "", ""]
    assert heads.looks == 3, "the token is as it was at the look that worked"


def test_a_follower_of_a_closing_worker_is_sent_to_another_one() -> None:
    sent: list[CellfeedError] = []

    async def error(found: CellfeedError) -> None:
        sent.append(found)

    async def ended() -> None:
        gone, closing = asyncio.get_running_loop().create_future(), asyncio.Future[None]()
        closing.set_result(None)
        route = follow.FollowRoute(*[cast("Any", None)] * 4)
        lines = cast("Any", SimpleNamespace(error=error))
        nothing = cast("Any", None)
        ends = [gone, closing, asyncio.Future[None]()]
        await route._follow(nothing, nothing, nothing, nothing, nothing, lines, ends)

    asyncio.run(ended())
    assert [type(each) for each in sent] == [StorageUnavailable]
