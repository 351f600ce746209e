"""Calls that take too long: counted once, on record before anybody continues, and never both in
time and late."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cellfeed.bridge.triggers.process_death.deadlines import EXIT_TIMED_OUT, Call, Deadlines
from cellfeed.store.errors import StaleWriter, StorageUnavailable
from tests.support.waiting import wait_until


@pytest.fixture
def exits() -> list[int]:
    return []


@pytest.fixture
def deadlines(exits: list[int]) -> Iterator[Deadlines]:
    made = Deadlines(exit_process=exits.append)
    yield made
    made.close()


def test_a_call_that_returns_in_time_is_no_time_out(deadlines: Deadlines) -> None:
    noted: list[str] = []
    call = Call("cell 1", 30.0, noted.append)
    deadlines.begin(call)
    assert deadlines.end(call)
    assert noted == []
    assert deadlines.overdue_because is None


def test_a_late_call_learns_of_its_time_out_only_when_that_is_on_record(
    deadlines: Deadlines,
) -> None:
    noted: list[str] = []
    noting, may_note = threading.Event(), threading.Event()

    def note(error: str) -> None:
        noting.set()
        may_note.wait(30)
        noted.append(error)

    call = Call("cell 1", 0.01, note)
    deadlines.begin(call)
    assert noting.wait(30)
    threading.Timer(0.1, may_note.set).start()
    assert not deadlines.end(call)
    assert len(noted) == 1
    assert "TimedOut: cell 1 ran longer than 0.01 s" in noted[0].splitlines()[-1]
    assert "test_trigger_deadlines.py" in noted[0]  # where it was
    wait_until(lambda: deadlines.overdue_because is not None, "the process is to end")


def test_while_the_store_is_away_the_note_is_tried_again_and_no_call_continues(
    deadlines: Deadlines,
) -> None:
    tries: list[str] = []

    def note(error: str) -> None:
        tries.append(error)
        if len(tries) < 3:
            raise StorageUnavailable("away")

    call = Call("cell 1", 0.01, note)
    deadlines.begin(call)
    wait_until(lambda: len(tries) == 1, "it is overdue")
    assert deadlines.overdue_because is None
    assert not deadlines.end(call)
    assert len(tries) == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "error", [StaleWriter("another worker has the shard"), ZeroDivisionError("a defect")]
)
def test_the_process_ends_also_when_the_time_out_cannot_be_put_on_record_at_all(
    deadlines: Deadlines, exits: list[int], error: Exception
) -> None:
    def note(_: str) -> None:
        raise error

    call = Call("cell 1", 0.01, note)
    deadlines.begin(call)
    wait_until(lambda: deadlines.overdue_because is not None, "the process is to end")
    assert not deadlines.end(call)
    deadlines.end_process()
    assert exits == [EXIT_TIMED_OUT]


def test_a_short_time_out_is_seen_soon_beside_a_long_one(deadlines: Deadlines) -> None:
    noted: list[str] = []
    long = Call("long", 3600.0, noted.append, thread_id=-1)
    short = Call("short", 0.02, noted.append)
    deadlines.begin(long)
    deadlines.begin(short)
    assert wait_for_late(deadlines, short)
    assert len(noted) == 1
    assert deadlines.end(long)


def wait_for_late(deadlines: Deadlines, call: Call) -> bool:
    wait_until(lambda: call.noted.is_set(), "it is overdue")
    return not deadlines.end(call)
