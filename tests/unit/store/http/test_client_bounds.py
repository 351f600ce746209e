"""Answers that a client refuses, and its next requests: calls as steps, with answers that a test
writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.errors import AnswerTooLarge, StorageUnavailable, WrongAnswer
from cellfeed.store.http.calls import asynchronous, blocking, follows, wire
from cellfeed.store.http.calls.datastore import DatastoreCalls
from cellfeed.store.http.calls.steps import Pause, Send, Steps
from cellfeed.store.http.calls.wire import Answer, AnswerReader, AttemptFailed
from cellfeed.store.http.calls.workers import Worker

T = TypeVar("T")
SHARDS = 4
ROW = UUID(int=7)
HEAD = {
    "log_start": 0,
    "watermark": 9,
    "next_added_id": 9,
    "leader_epoch": 0,
    "last_created_at_us": 0,
}
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def drive(steps: Steps[T], answer: Callable[[str, Any], object]) -> T:
    """The result of a call. ``answer``: the worker's answer, by a request's target and content."""
    sent: Any = None
    while True:
        try:
            step = steps.send(sent)
        except StopIteration as ended:
            return cast("T", ended.value)
        sent = None
        if isinstance(step, Send):
            request = step.request
            found = answer(request.target, json.loads(request.content or b"null"))
            is_error = isinstance(found, AnswerTooLarge)
            content = json.dumps(found.as_json() if isinstance(found, AnswerTooLarge) else found)
            sent = Answer(413 if is_error else 200, content.encode())
        else:
            assert isinstance(step, Pause)


@pytest.fixture
def calls() -> DatastoreCalls:
    made = DatastoreCalls("http://h:1", "trips", 5.0, None)
    made._shards = SHARDS
    return made


def test_a_read_of_many_logs_that_is_too_large_is_divided_and_leaves_none_out(
    calls: DatastoreCalls,
) -> None:
    asked: list[list[int]] = []

    def answer(_target: str, content: Any) -> object:
        shards = [each["shard"] for each in content["locations"]]
        asked.append(shards)
        if len(shards) > 1:
            return AnswerTooLarge("ask for fewer shards at once")
        piece = {"cells": [], "next_location": 5, "head": HEAD}
        return {"shards": [{"shard": shard, **piece} for shard in shards]}

    found = drive(calls.get_cells_for_shards({2: 5, 0: 5, 3: 5}, 10), answer)
    assert {shard: piece.next_location for shard, piece in found.items()} == {2: 5, 0: 5, 3: 5}
    assert asked == [[2, 0, 3], [2], [0, 3], [0], [3]]


def test_the_columns_of_a_row_are_read_on_behind_the_last_one(calls: DatastoreCalls) -> None:
    asked: list[str] = []

    def cell(column: str) -> dict[str, Any]:
        place = {"shard": shard_of(ROW.bytes, SHARDS), "added_id": 4}
        key = {"row_key": str(ROW), "column_name": column, "ref_key": 1, "body": {}}
        return {**key, **place, "created_at": "2026-01-01T00:00:00Z"}

    def answer(target: str, content: Any) -> object:
        if content is None:
            return AnswerTooLarge("read it in pages")
        asked.append(content["after_column"])
        if len(asked) == 1:
            return {"rows": [{"cells": {"A": cell("A")}}], "next_row": 0, "after_column": "A"}
        return {"rows": [{"cells": {"B": cell("B")}}]}

    assert sorted(drive(calls.get_row(ROW, "master"), answer)) == ["A", "B"]
    assert asked == ["", "A"]


def test_a_wait_believes_only_the_answer_about_its_own_outlet(calls: DatastoreCalls) -> None:
    def answer(_target: str, _content: object) -> object:
        return {"outlet": "trigger 'other'", "passed": True}

    with pytest.raises(WrongAnswer, match="'billing'"):
        drive(calls.wait_for("h:0.1", {"trigger": "billing"}), answer)


def test_a_closed_client_follows_nothing(calls: DatastoreCalls) -> None:
    call = calls.follow(None, None, "latest")
    calls.close()
    with pytest.raises(StorageUnavailable, match="is closed"):
        drive(call.open(), lambda *_: pytest.fail("it was sent"))


def test_a_line_without_an_end_costs_an_error_and_not_the_memory(
    calls: DatastoreCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follows, "LINE_BYTES_MAX", 10)
    call = calls.follow(None, None, "latest")
    call.feed(b'{"cell":')
    with pytest.raises(WrongAnswer, match="more than 10 bytes"):
        call.feed(b"1234567890")


# --- answers as bytes -----------------------------------------------------------------------------


def test_an_answer_without_an_end_costs_an_error_and_not_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "ANSWER_BYTES_MAX", 10)
    reader = AnswerReader("h:1", b"1")
    reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n12345678\r\n")
    with pytest.raises(AttemptFailed, match="more than 10 bytes"):
        reader.feed(b"8\r\n12345678\r\n")


def test_a_second_answer_behind_the_first_shows_that_a_connection_is_out_of_step() -> None:
    reader = AnswerReader("h:1", b"1")
    reader.feed(WHOLE)
    assert reader.answer().content == b"{}"
    reader.feed(WHOLE)
    with pytest.raises(AttemptFailed) as failed:
        reader.answer()
    assert failed.value.wrong_answer


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_connection_that_was_cut_while_sending_is_not_used_again(is_cut: bool) -> None:
    class Socket:
        settimeout = close = lambda *_: None

        def sendall(self, _request: bytes) -> None:
            if is_cut:
                raise BrokenPipeError

        def recv(self, _size: int) -> bytes:
            return WHOLE

    connection = blocking._Connection(cast("Any", Socket()), "h:1")
    assert connection.exchange(b"", b"1", float("inf")).status == 200
    assert connection.is_reusable is not is_cut


# --- connections of an event loop -----------------------------------------------------------------


def connection() -> tuple[asynchronous._Connection, list[str]]:
    """An open one, and the list of the calls of its transport."""
    done: list[str] = []
    made = asynchronous._Connection("h:1")
    made.connection_made(cast("Any", SimpleNamespace(abort=lambda: done.append("aborted"))))
    return made, done


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_closed_client_keeps_no_connection(is_closed: bool) -> None:
    async def kept() -> int:
        run, worker = asynchronous.Asynchronous(), Worker("http://h:1")
        if is_closed:
            run.close()
        run._give_back(worker, connection()[0])
        return len(run._idle()[worker])

    assert asyncio.run(kept()) == (not is_closed)


def test_bytes_that_nobody_asked_for_end_a_connection() -> None:
    made, done = connection()
    made.idle_since = float("inf")
    assert made.is_still_open()
    made.data_received(WHOLE)
    assert not made.is_still_open()
    assert done == ["aborted"]
