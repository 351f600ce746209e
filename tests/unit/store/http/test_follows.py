"""A follower whose connections are cut anywhere: the two sides without I/O, one against the
other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.token import Token
from cellfeed.store.engines.contract.values import Head, LogRange
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    StorageUnavailable,
    Trimmed,
    WrongAnswer,
)
from cellfeed.store.followed import SILENT_S, Wanted
from cellfeed.store.following.reading import read_pieces
from cellfeed.store.following.start import start_positions
from cellfeed.store.following.state import FollowState
from cellfeed.store.http.calls.follows import FollowCall
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Pause, Send
from cellfeed.store.http.calls.wire import Answer, AttemptFailed
from cellfeed.store.http.follow_messages import FollowMessage
from cellfeed.store.http.server.follow import lines_of

HISTORY = "history-1"
SHARDS = 3
NAMES = ["A", "B"]


class Logs:
    """An engine with the reads that a follower needs, in memory."""

    def __init__(self) -> None:
        self.cells: dict[int, list[StoredCell]] = {shard: [] for shard in range(SHARDS)}
        self.away: set[int] = set()
        self.damaged: set[tuple[int, int]] = set()
        self.log_start = 0
        self.read: list[int] = []

    def put(self, shard: int, column: str) -> None:
        log = self.cells[shard]
        row = UUID(int=len(log)).bytes
        log.append(StoredCell(len(log), row, column, 1, 0, encode_body(b"{}")))

    def heads(self) -> dict[int, Head]:
        return {
            shard: Head(self.log_start, len(log), len(log), 1, 0)
            for shard, log in self.cells.items()
        }

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        self.read.append(shard)
        if shard in self.away:
            raise StorageUnavailable(f"shard {shard} is away")
        found = self.cells[shard][location : location + limit]
        for each in found:
            if (shard, each.added_id) in self.damaged:
                raise DataDamaged(f"the cell at {shard}/{each.added_id} is damaged")
        return found

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        return [self.scan(*each) for each in ranges]


class Worker:
    """The lines that a worker sends of these logs, as the route sends them."""

    def __init__(self, logs: Logs, asked: bytes) -> None:
        message = msgspec.json.decode(asked, type=FollowMessage)
        start: Any = message.start if message.token is None else Token.parse(message.token)
        wanted = Wanted(frozenset(message.columns) if message.columns else None, None, start)
        self._logs, self._columns = logs, wanted.columns
        heads = logs.heads()
        self.state = FollowState(start_positions(wanted, heads, lambda *_: 0))
        self.sent = lines_of([], self.state.positions, HISTORY)

    def step(self, now_s: float) -> None:
        self.state.look(self._logs.heads())
        ranges = self.state.ranges(now_s)
        pieces = read_pieces(self._logs, ranges, self._columns)  # type: ignore[arg-type]
        for _, cells in self.state.take(pieces, now_s):
            self.sent += lines_of(cells)
        if self.state.failed is None:
            self.sent += lines_of([], self.state.bookmark(), HISTORY)


def call_of(columns: frozenset[str] | None = None, start: Any = "earliest") -> FollowCall:
    requests = Requests(["http://h:1"], "trips", 5.0)
    return FollowCall(requests, Wanted(columns, None, start), 5.0)


def begun(call: FollowCall, logs: Logs) -> Worker:
    """The worker that the next request of the follower reaches."""
    steps = call.open()
    step = next(steps)
    while isinstance(step, Pause):
        step = steps.send(None)
    assert isinstance(step, Send)
    assert step.streams
    worker = Worker(logs, step.request.content)
    with pytest.raises(StopIteration):
        steps.send(Answer(200, b"", HISTORY, worker))
    return worker


def drained(call: FollowCall) -> list[tuple[int, int]]:
    places = []
    while (cell := call.take()) is not None:
        places.append((cell.shard, cell.added_id))
    return places


events = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, SHARDS - 1), st.sampled_from(NAMES)),
        st.tuples(st.just("send"), st.integers(1, 400), st.just("")),
        st.tuples(st.just("cut"), st.just(0), st.just("")),
        st.tuples(st.just("away"), st.integers(0, SHARDS - 1), st.just("")),
        st.tuples(st.just("back"), st.integers(0, SHARDS - 1), st.just("")),
    ),
    max_size=60,
)


@given(events, st.sampled_from([None, frozenset(["A"])]))
def test_each_cell_is_given_once_and_in_order_however_connections_are_cut(
    happening: list[tuple[str, int, str]], columns: frozenset[str] | None
) -> None:
    logs, call = Logs(), call_of(columns)
    worker, given_cells, now_s = begun(call, logs), [], 0.0
    for what, number, column in [*happening, *[("back", each, "") for each in range(SHARDS)]]:
        now_s += 10
        if what == "put":
            logs.put(number, column)
        elif what == "away":
            logs.away.add(number)
        elif what == "back":
            logs.away.discard(number)
        elif what == "send":
            worker.step(now_s)
            piece, worker.sent = worker.sent[:number], worker.sent[number:]
            call.feed(piece) if piece else None
            given_cells += drained(call)
        else:
            call.failed(AttemptFailed("cut", definite=False))
            worker = begun(call, logs)
    for _ in range(3):
        now_s += 10
        worker.step(now_s)
    call.feed(worker.sent)
    given_cells += drained(call)
    for shard, log in logs.cells.items():
        expected = [each.added_id for each in log if not columns or each.column_name in columns]
        assert [added_id for of, added_id in given_cells if of == shard] == expected
    assert call.token == Token.passed(
        HISTORY, {shard: len(log) for shard, log in logs.cells.items()}
    )


def test_shards_without_new_cells_are_not_read() -> None:
    logs = Logs()
    for shard in range(SHARDS):
        logs.put(shard, "A")
    worker = Worker(logs, msgspec.json.encode(FollowMessage()))
    worker.step(0.0)
    assert logs.read == []
    logs.put(1, "A")
    worker.step(1.0)
    worker.step(2.0)
    assert logs.read == [1]


def test_a_shard_that_is_away_stops_no_other_and_is_asked_less_and_less() -> None:
    logs = Logs()
    worker = Worker(logs, msgspec.json.encode(FollowMessage(start="earliest")))
    logs.away.add(0)
    for shard in range(SHARDS):
        logs.put(shard, "A")
    worker.step(0.0)
    assert worker.state.positions == {0: 0, 1: 1, 2: 1}
    assert "shard 0: shard 0 is away" in worker.state.because
    logs.read.clear()
    for hundredth in range(1_000):
        worker.step(hundredth / 100)
    assert 3 < len(logs.read) < 15
    logs.away.clear()
    worker.step(100.0)
    assert worker.state.positions[0] == 1
    assert worker.state.because == ""


def test_a_bookmark_covers_no_cell_that_was_not_sent() -> None:
    logs, call = Logs(), call_of()
    worker = begun(call, logs)
    for shard in range(SHARDS):
        logs.put(shard, "A")
    logs.away.add(0)
    worker.step(0.0)
    call.feed(worker.sent)
    assert drained(call) == [(1, 0), (2, 0)]
    assert call.token == Token.passed(HISTORY, {1: 1, 2: 1})


def test_a_damaged_cell_is_an_error_behind_the_cells_before_it() -> None:
    logs, call = Logs(), call_of()
    for _ in range(100):
        logs.put(0, "A")
    logs.damaged.add((0, 70))
    worker = begun(call, logs)
    for _ in range(20):
        if worker.state.failed is None:
            worker.step(0.0)
    assert isinstance(worker.state.failed, DataDamaged)
    call.feed(worker.sent)
    assert drained(call) == [(0, added_id) for added_id in range(70)]


def test_a_trim_past_a_follower_is_an_error_and_no_skip() -> None:
    logs = Logs()
    logs.put(0, "A")
    worker = Worker(logs, msgspec.json.encode(FollowMessage(start="earliest")))
    logs.log_start = 1
    with pytest.raises(Trimmed, match="log begins at 1"):
        worker.step(0.0)


@pytest.mark.parametrize(
    ("shard", "added_id", "column"), [(0, 1, "A"), (0, 0, "B"), (2, 0, "A"), (1, 4, "A")]
)
def test_a_cell_that_is_not_the_next_one_is_not_given(
    shard: int, added_id: int, column: str
) -> None:
    logs, call = Logs(), call_of()
    if column == "B":
        call = FollowCall(
            Requests(["http://h:1"], "trips", 5.0), Wanted(frozenset("A"), (0, 1), "earliest"), 5.0
        )
    worker = begun(call, logs)
    call.feed(worker.sent)
    assert drained(call) == []
    cell = StoredCell(added_id, UUID(int=1).bytes, column, 1, 0, encode_body(b"{}"))
    logs.cells[shard] = [cell]
    ranges = [LogRange(shard, 0, 1)]
    [piece] = read_pieces(logs, ranges, None)  # type: ignore[arg-type]
    call.feed(lines_of(piece.cells))
    if (shard, added_id, column) == (2, 0, "A"):
        assert drained(call) == [(2, 0)]
        call.feed(lines_of(piece.cells))  # twice
    with pytest.raises(WrongAnswer, match="not the next one"):
        call.take()


def test_a_follower_that_finds_no_worker_raises_and_then_tries_again() -> None:
    call = FollowCall(
        Requests(["http://h:1"], "trips", 0.05), Wanted(None, None, "latest"), timeout_s=0.05
    )
    call.failed(AttemptFailed("gone", definite=False))

    def tried() -> None:
        steps = call.open()
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                step = steps.send(None)
            else:
                step = steps.throw(AttemptFailed("gone", definite=False))

    with pytest.raises(StorageUnavailable, match="gone"):
        tried()
    assert isinstance(next(call.open()), Send)


def test_a_worker_that_does_not_answer_leaves_time_for_another() -> None:
    call = FollowCall(
        Requests(["http://h:1", "http://h:2"], "trips", 3_600.0),
        Wanted(None, None, "latest"),
        3_600.0,
    )
    step = next(call.open())
    assert isinstance(step, Send)
    assert step.deadline - time.monotonic() <= SILENT_S


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'{"cell":{}}\n', b"\xff\n"])
def test_a_line_that_is_none_is_refused(line: bytes) -> None:
    call = call_of()
    with pytest.raises(CellfeedError):
        call.feed(line)
