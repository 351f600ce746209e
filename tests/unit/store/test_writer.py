"""Group commit over a stand-in engine: grouping, order, back-pressure, failures and the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

import cellfeed.store.commit.group_commit
import cellfeed.store.commit.put_answers
from cellfeed.store import background
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.commit.group_commit import GroupCommitWriter
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import InvalidRequest, OutcomeUnknown, Overloaded, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached
from cellfeed.store.histories import NO_HISTORY
from cellfeed.store.limits import BATCH_CELLS_MAX


class GatedEngine:
    """Commits when the gate is open and remembers each group."""

    datastore = "trips"
    history = NO_HISTORY

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.groups: list[list[int]] = []
        self.fail_next: Exception | None = None

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        self.entered.set()
        assert self.gate.wait(10)
        if self.fail_next:
            error, self.fail_next = self.fail_next, None
            raise error
        start = sum(map(len, self.groups))
        self.groups.append([cell.ref_key for cell in cells])
        return [PutResult(Outcome.STORED, 0, start + n) for n in range(len(cells))]


def cell(number: int) -> NewCell:
    return new_cell(UUID(int=0), "BASE", number, {})


def writer_over(engine: GatedEngine, on_commit: Any = lambda: None) -> GroupCommitWriter:
    return GroupCommitWriter(cast("Engine", engine), on_commit)


def test_waiting_calls_are_committed_together_in_the_order_of_arrival() -> None:
    engine, commits = GatedEngine(), []
    writer = writer_over(engine, lambda: commits.append(1))
    first = writer.queue([cell(0)])
    assert engine.entered.wait(10)
    others = [writer.queue([cell(n), cell(n + 100)]) for n in range(1, 5)]
    assert not any(answer.done() for answer in [first, *others])
    engine.gate.set()
    assert first.result(10)[0].added_id == 0
    assert [[r.added_id for r in answer.result(10)] for answer in others] == [
        [1, 2],
        [3, 4],
        [5, 6],
        [7, 8],
    ]
    assert engine.groups == [[0], [1, 101, 2, 102, 3, 103, 4, 104]]
    writer.close()
    assert len(commits) == 2


def test_a_failed_group_fails_each_of_its_calls_and_the_next_group_continues() -> None:
    engine = GatedEngine()
    engine.fail_next = StorageUnavailable("disk")
    writer = writer_over(engine)
    failed = writer.queue([cell(0)])
    engine.gate.set()
    with pytest.raises(StorageUnavailable, match="disk"):
        failed.result(10)
    assert writer.queue([cell(1)]).result(10)[0].outcome is Outcome.STORED
    writer.close()
    assert engine.groups == [[1]], "what failed is put again by its caller alone"


def test_a_full_queue_refuses_and_accepted_calls_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cellfeed.store.commit.write_queue.WRITE_QUEUE_CELLS_MAX", 3)
    engine = GatedEngine()
    writer = writer_over(engine)
    running = writer.queue([cell(0)])
    assert engine.entered.wait(10)
    waiting = writer.queue([cell(1), cell(2), cell(3)])
    with pytest.raises(Overloaded, match="3 cells are waiting"):
        writer.queue([cell(4)])
    engine.gate.set()
    assert running.result(10)
    assert waiting.result(10)
    assert writer.queue([cell(4)]).result(10)
    writer.close()
    assert engine.groups == [[0], [1, 2, 3], [4]]


def test_a_call_taken_back_before_its_turn_is_not_written() -> None:
    engine = GatedEngine()
    writer = writer_over(engine)
    writer.queue([cell(0)])
    assert engine.entered.wait(10)
    taken_back = writer.queue([cell(1)])
    assert taken_back.cancel()
    kept = writer.queue([cell(2)])
    engine.gate.set()
    kept.result(10)
    writer.close()
    assert engine.groups == [[0], [2]]


@pytest.mark.parametrize("limit", ["WRITE_QUEUE_CELLS_MAX", "WRITE_QUEUE_BYTES_MAX"])
def test_a_call_taken_back_leaves_its_room_to_others(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"cellfeed.store.commit.write_queue.{limit}", 3)
    engine = GatedEngine()
    writer = writer_over(engine)
    running = writer.queue([cell(0)])
    assert engine.entered.wait(10)
    large = [cell(1), cell(2), cell(3)]
    for _ in range(3):
        taken_back = writer.queue(large)
        with pytest.raises(Overloaded):
            writer.queue([cell(4)])
        assert taken_back.cancel()
    engine.gate.set()
    assert running.result(10)
    writer.close()
    assert engine.groups == [[0]]


def test_a_group_has_at_most_the_limit_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellfeed.store.commit.write_queue.GROUP_CELLS_MAX", 4)
    engine = GatedEngine()
    writer = writer_over(engine)
    writer.queue([cell(0)])
    assert engine.entered.wait(10)
    last = [writer.queue([cell(n), cell(n), cell(n)]) for n in (1, 2)][-1]
    engine.gate.set()
    last.result(10)
    writer.close()
    assert engine.groups == [[0], [1, 1, 1], [2, 2, 2]]


def large(number: int, size: int) -> NewCell:
    return new_cell(UUID(int=0), "BASE", number, {"x": "y" * (size - len('{"x":""}'))})


def test_a_group_has_at_most_the_limit_of_bytes_and_a_larger_call_is_a_group_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cellfeed.store.commit.write_queue.GROUP_BYTES_MAX", 100)
    engine = GatedEngine()
    writer = writer_over(engine)
    writer.queue([large(0, 20)])
    assert engine.entered.wait(10)
    last = [
        writer.queue([large(number, size)])
        for number, size in [(1, 60), (2, 40), (3, 30), (4, 500), (5, 20), (6, 20)]
    ][-1]
    engine.gate.set()
    last.result(10)
    writer.close()
    assert engine.groups == [[0], [1, 2], [3], [4], [5, 6]]


def test_too_many_waiting_bytes_are_refused_until_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cellfeed.store.commit.write_queue.WRITE_QUEUE_BYTES_MAX", 100)
    engine = GatedEngine()
    writer = writer_over(engine)
    running = writer.queue([large(0, 500)])
    assert engine.entered.wait(10)
    waiting = writer.queue([large(1, 60)])
    with pytest.raises(Overloaded, match="60 bytes are waiting"):
        writer.queue([large(2, 60)])
    engine.gate.set()
    assert running.result(10)
    assert waiting.result(10)
    assert writer.queue([large(2, 60)]).result(10)
    writer.close()
    assert engine.groups == [[0], [1], [2]]


def test_too_large_a_call_is_refused_and_an_empty_one_has_no_effect() -> None:
    engine = GatedEngine()
    engine.gate.set()
    writer = writer_over(engine)
    with pytest.raises(InvalidRequest, match="at most 5000"):
        writer.queue([cell(0)] * (BATCH_CELLS_MAX + 1))
    assert writer.queue([]).result(0) == []
    writer.close()
    assert engine.groups == []


def test_closing_writes_waiting_calls_and_then_refuses() -> None:
    engine = GatedEngine()
    writer = writer_over(engine)
    writer.queue([cell(0)])
    assert engine.entered.wait(10)
    waiting = writer.queue([cell(1)])
    closing = threading.Thread(target=writer.close)
    closing.start()
    engine.gate.set()
    closing.join(10)
    assert waiting.result(0)[0].outcome is Outcome.STORED
    with pytest.raises(StorageUnavailable, match="closed"):
        writer.queue([cell(2)])


def await_waiting(writer: GroupCommitWriter, calls: int) -> None:
    deadline = time.monotonic() + 60
    while len(writer._waiting) != calls:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_callers_that_return_are_waited_for_and_written_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cellfeed.store.commit.group_commit, "_GATHER_SHARE", 1e9)
    monkeypatch.setattr(cellfeed.store.commit.group_commit, "_GATHER_PAUSE_S", 60.0)
    engine = GatedEngine()
    writer = writer_over(engine)

    def call(caller: int) -> None:
        for number in range(20):
            writer.queue([cell(100 * caller + number)]).result(60)

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(8)]
    callers[0].start()
    assert engine.entered.wait(10)
    for caller in callers[1:]:
        caller.start()
    await_waiting(writer, 7)
    engine.gate.set()
    # The first has put its last cell before the others, which wait for it in vain, until the writer
    # is closed.
    callers[0].join(60)
    await_waiting(writer, 7)
    writer.close()
    for caller in callers:
        caller.join(60)
    assert [len(group) for group in engine.groups] == [1, *[8] * 19, 7]


def test_callers_that_do_not_return_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cellfeed.store.commit.group_commit, "_GATHER_SHARE", 1e9)
    engine = GatedEngine()
    writer = writer_over(engine)
    gone = [writer.queue([cell(n)]) for n in range(5)]
    engine.gate.set()
    for answer in gone:
        answer.result(60)
    assert writer.queue([cell(5)]).result(60)
    writer.close()


def test_closing_ends_the_wait_for_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cellfeed.store.commit.group_commit, "_GATHER_SHARE", 1e9)
    monkeypatch.setattr(cellfeed.store.commit.group_commit, "_GATHER_PAUSE_S", 600.0)
    engine = GatedEngine()
    writer = writer_over(engine)
    first = writer.queue([cell(0)])
    assert engine.entered.wait(10)
    others = [writer.queue([cell(n)]) for n in (1, 2)]
    engine.gate.set()
    first.result(60)
    writer.close()
    assert all(answer.result(0) for answer in others)


class Hook:
    """A call of a writer beside its work; it raises the error of the test, once."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if (error := self.error) is not None:
            self.error = None
            raise error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), OverflowError("port must be 0-65535."), MemoryError()],
    ids=repr,
)
@pytest.mark.parametrize("which", ["on_commit", "on_results"])
def test_an_error_of_a_hook_leaves_the_committed_group_answered_and_the_next_written(
    which: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    engine, hook = GatedEngine(), Hook(error)
    engine.gate.set()
    hooks: dict[str, Any] = {"on_commit": lambda: None, "on_results": None, which: hook}
    writer = GroupCommitWriter(
        cast("Engine", engine), hooks["on_commit"], on_results=hooks["on_results"]
    )
    assert writer.queue([cell(0)]).result(10)[0].outcome is Outcome.STORED
    assert writer.queue([cell(1)]).result(10)[0].outcome is Outcome.STORED
    writer.close()
    assert hook.calls == 2
    assert engine.groups == [[0], [1]]
    assert repr(error)[:12] in caplog.text


@pytest.mark.parametrize("error", [MemoryError(), KeyError("x")], ids=repr)
def test_a_defect_below_leaves_the_outcome_unknown(error: Exception) -> None:
    engine = GatedEngine()
    engine.fail_next = error
    engine.gate.set()
    writer = writer_over(engine)
    with pytest.raises(OutcomeUnknown, match="put the same cells again"):
        writer.queue([cell(0)]).result(10)
    assert writer.queue([cell(1)]).result(10)
    writer.close()


def test_an_engine_that_answers_for_fewer_cells_leaves_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = GatedEngine()
    engine.gate.set()
    writer = writer_over(engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "put", lambda cells: [])
        with pytest.raises(OutcomeUnknown, match="0 results for 1 cells"):
            writer.queue([cell(0)]).result(10)
    assert writer.queue([cell(1)]).result(10)
    writer.close()


def test_a_group_that_is_taken_and_not_begun_fails_definitely_and_the_next_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = GatedEngine()
    engine.gate.set()
    writer = writer_over(engine)
    with monkeypatch.context() as patch:
        patch.setattr(writer._waiting, "_left", Hook(MemoryError()))
        with pytest.raises(StorageUnavailable, match="nothing written") as failed:
            writer.queue([cell(0)]).result(10)
    assert failed.value.definite
    assert writer.queue([cell(1)]).result(10)
    writer.close()
    assert engine.groups == [[1]]


def test_a_put_is_not_unknown_because_an_earlier_group_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = GatedEngine()
    engine.gate.set()
    writer = writer_over(engine)
    assert writer.queue([cell(0)]).result(10)
    with monkeypatch.context() as patch:
        patch.setattr(writer._waiting, "_left", Hook(MemoryError()))
        with pytest.raises(StorageUnavailable, match="nothing written"):
            writer.queue([cell(1)]).result(10)
    writer.close()


def test_an_error_while_answers_are_given_loses_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = GatedEngine()
    writer = writer_over(engine)
    writer.queue([cell(0)])
    assert engine.entered.wait(10)
    told: list[int] = []
    answers = [
        writer.queue([cell(n)], lambda answer: told.append(answer.cells[0].ref_key)) for n in (1, 2)
    ]
    found: list[list[PutResult]] = []
    waiting = [
        threading.Thread(target=lambda answer=answer: found.append(answer.result(30)), daemon=True)
        for answer in answers
    ]
    for thread in waiting:
        thread.start()
    wake_next, calls = cellfeed.store.commit.put_answers.wake_next, iter(range(100))

    def fail_for_the_second_group(row: Any) -> None:
        if next(calls) == 1:
            raise MemoryError
        wake_next(row)

    monkeypatch.setattr(cellfeed.store.commit.put_answers, "wake_next", fail_for_the_second_group)
    engine.gate.set()
    for thread in waiting:
        thread.join(10)
    assert [[each.outcome for each in results] for results in found] == [[Outcome.STORED]] * 2
    assert sorted(told) == [1, 2]
    writer.close()


def test_a_writer_that_has_ended_is_reported_by_every_call() -> None:
    def is_in_trouble() -> bool:
        return any("writer-ended" in trouble for trouble in background.troubles())

    engine, hook = GatedEngine(), Hook(FailpointReached("on_commit"))
    engine.datastore = "ended"  # a loop of another test may be in trouble, too
    engine.gate.set()
    writer = writer_over(engine, hook)
    with pytest.raises(OutcomeUnknown):
        writer.queue([cell(0)]).result(10)
    deadline_s = time.monotonic() + 10
    while not is_in_trouble():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    refused: Exception | None = None
    while refused is None:  # the trouble is known a moment before the writer refuses
        assert time.monotonic() < deadline_s
        try:
            writer.queue([cell(1)])
        except StorageUnavailable as error:
            refused = error
    assert "is dead" in str(refused)
    assert is_in_trouble()
    writer.close()
    assert not is_in_trouble()
