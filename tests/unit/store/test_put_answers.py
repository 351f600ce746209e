"""The waits of callers of the group commit: every one is woken, in any way that the others wait,
give up or never come."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.commit.put_answers import PutAnswer, Then, answer_all, answer_rest
from cellfeed.store.errors import CellfeedError, OutcomeUnknown, StorageUnavailable

LONG_S = 60.0


def cell(number: int) -> NewCell:
    return new_cell(UUID(int=0), "BASE", number, {})


def stored(added_id: int) -> PutResult:
    return PutResult(Outcome.STORED, 0, added_id)


def answer_for(*numbers: int, then: Then | None = None) -> PutAnswer:
    return PutAnswer([cell(number) for number in numbers], lambda _: False, then)


def in_thread(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_each_call_gets_the_results_of_its_own_cells() -> None:
    first, second = answer_for(1), answer_for(2, 3)
    assert not first.done()
    answer_all([first, second], [stored(1), stored(2), stored(3)])
    assert first.done()
    assert second.done()
    assert [first.result(0), second.result()] == [[stored(1)], [stored(2), stored(3)]]


def test_an_error_is_that_of_every_call() -> None:
    answers = [answer_for(n) for n in range(3)]
    answer_all(answers, [], ValueError("why"))
    for answer in answers:
        with pytest.raises(ValueError, match="why"):
            answer.result(0)


def test_a_call_without_an_answer_times_out_and_may_be_waited_for_again() -> None:
    answer = answer_for(1)
    with pytest.raises(TimeoutError):
        answer.result(0.001)
    with pytest.raises(TimeoutError):
        answer.result(0)
    answer_all([answer], [stored(1)])
    assert answer.result(0) == [stored(1)]


@pytest.mark.parametrize(
    ("is_in_the_queue", "error"), [(True, StorageUnavailable), (False, OutcomeUnknown)]
)
def test_a_call_that_runs_out_of_time_is_refused_for_certain_only_while_it_stands_in_the_queue(
    is_in_the_queue: bool, error: type[CellfeedError]
) -> None:
    taken: list[PutAnswer] = []

    def take_back(answer: PutAnswer) -> bool:
        taken.append(answer)
        return is_in_the_queue

    answer = PutAnswer([cell(1)], take_back)
    raised = answer.out_of_time(1.0)
    assert type(raised) is error
    assert taken == [answer]
    assert raised.definite is is_in_the_queue


def test_a_caller_without_a_thread_is_called_once() -> None:
    """The answering thread may be cut off between the calls, and ends its work afterwards."""
    called: list[PutAnswer] = []
    answer = answer_for(1, then=called.append)
    answer_all([answer], [stored(1)])
    answer_rest([answer], OutcomeUnknown("cut off"))
    assert called == [answer]
    assert answer.result(0) == [stored(1)]


def test_all_threads_are_woken_among_answers_that_nobody_waits_for_and_threads_that_give_up() -> (
    None
):
    for seed in range(20):
        answers = [answer_for(n) for n in range(60)]
        got: list[int] = []

        def wait(
            number: int, answers: list[PutAnswer] = answers, got: list[int] = got, seed: int = seed
        ) -> None:
            if (number + seed) % 3 == 1:
                try:
                    answers[number].result(
                        0.002 * (number % 5)
                    )  # may give up before, at or after the answer
                except TimeoutError:
                    return
            added_id = answers[number].result(LONG_S)[0].added_id
            assert added_id is not None
            got.append(added_id)

        waiting = [in_thread(partial(wait, number)) for number in range(60) if number % 4]
        time.sleep(
            0.0005 * (seed % 10)
        )  # not for anything to happen: the answer comes while the threads are at different places
        answer_all(answers, [stored(n) for n in range(60)])
        for thread in waiting:
            thread.join(LONG_S)
            assert not thread.is_alive()
        patient = [number for number in range(60) if number % 4 and (number + seed) % 3 != 1]
        assert set(got) >= set(patient)
        assert all(answer.done() for answer in answers)


def test_several_threads_may_wait_for_one_answer() -> None:
    answer, got = answer_for(1), []
    waiting = [in_thread(lambda: got.append(answer.result(LONG_S))) for _ in range(8)]
    answer_all([answer, answer_for(2)], [stored(1), stored(2)])
    for thread in waiting:
        thread.join(LONG_S)
    assert got == [[stored(1)]] * 8


def test_callbacks_have_their_answer_when_called_and_an_error_in_one_delays_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[list[PutResult]] = []

    def fails(_: PutAnswer) -> None:
        raise RuntimeError("the loop is gone")

    answers = [
        answer_for(1, then=fails),
        answer_for(2, then=lambda answer: told.append(answer.result(0))),
    ]
    with caplog.at_level(logging.ERROR, "cellfeed.writer"):
        answer_all(answers, [stored(1), stored(2)])
    assert told == [[stored(2)]]
    assert "could not get its answer" in caplog.text
