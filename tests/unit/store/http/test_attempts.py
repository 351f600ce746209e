"""Which worker is asked, and how certain the outcome is at the end, with workers that give the
answers of a test."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cellfeed.store.errors import (
    CellConflict,
    CellfeedError,
    InvalidRequest,
    NotFound,
    OtherHistory,
    OutcomeUnknown,
    Overloaded,
    StorageUnavailable,
    WrongAnswer,
)
from cellfeed.store.http.calls import attempts as module
from cellfeed.store.http.calls.attempts import Attempts
from cellfeed.store.http.calls.steps import Pause, Steps
from cellfeed.store.http.calls.wire import Answer, AttemptFailed, Request

OPEN = AttemptFailed("cut", definite=False)
REFUSED = AttemptFailed("nobody listens", definite=True, refused=True)
WRONG = AttemptFailed("another answer", definite=True, wrong_answer=True)


def error(kind: type[CellfeedError]) -> Answer:
    return Answer(kind.http_status, msgspec.json.encode(kind("said so").as_json()))


class ScriptedWorker:
    """Gives its answers in turn, the last one again and again."""

    def __init__(self, name: str, *answers: Answer | AttemptFailed) -> None:
        self.name = name
        self.answers = list(answers)
        self.trusted_again_at = 0.0
        self.asked = 0
        self.histories: list[str | None] = []

    def answer_to(self, request: Request) -> Answer:
        self.asked += 1
        self.histories.append(request.history)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, AttemptFailed):
            raise answer
        return answer


def attempts(*workers: ScriptedWorker, timeout_s: float = 0.2) -> Attempts:
    made = Attempts(["http://h:1"], timeout_s)
    made._workers = list(workers)  # type: ignore[arg-type]
    return made


def run(steps: Steps[Any], pause: Callable[[Pause], None] = lambda _: None) -> Any:
    """Runs a call with its scripted workers; ``pause`` is called instead of waiting."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                pause(step)
                step = steps.send(None)
                continue
            worker: Any = step.worker
            try:
                answer = worker.answer_to(step.request)
            except AttemptFailed as failed:
                step = steps.throw(failed)
            else:
                step = steps.send(answer)
    except StopIteration as ended:
        return ended.value


def call(
    made: Attempts,
    *,
    writes: bool = False,
    opened: list[Exception] | None = None,
    pause: Callable[[Pause], None] = lambda _: None,
) -> bytes:
    steps = made.call(
        "GET", "/", b"", "json", deadline=made.deadline(), writes=writes, opened=opened
    )
    answer: bytes = run(steps, pause)
    return answer


def test_a_worker_that_cannot_answer_is_asked_last_until_it_is_trusted_again() -> None:
    for failure in (REFUSED, error(StorageUnavailable)):
        away = ScriptedWorker("away", failure)
        made = attempts(away, sound := ScriptedWorker("sound", Answer(200, b"yes")))
        for _ in range(6):
            assert call(made) == b"yes"
        assert away.asked <= 1, "once, and then the other one is asked"
        assert sound.asked == 6
        away.trusted_again_at = 0.0
        away.answers = [Answer(200, b"back")]
        assert {call(made) for _ in range(4)} == {b"yes", b"back"}


@pytest.mark.parametrize("kind", [NotFound, InvalidRequest])
def test_a_request_that_a_worker_refuses_for_good_is_sent_to_no_other(
    kind: type[CellfeedError],
) -> None:
    workers = [ScriptedWorker(name, error(kind)) for name in "ab"]
    with pytest.raises(kind):
        call(attempts(*workers), writes=True)
    assert sum(worker.asked for worker in workers) == 1


@pytest.mark.parametrize("first", [OPEN, error(OutcomeUnknown)])
@pytest.mark.parametrize("then", [REFUSED, error(Overloaded), error(InvalidRequest)])
def test_a_write_that_may_have_happened_is_not_reported_as_refused_and_a_read_is(
    first: Answer | AttemptFailed, then: Answer | AttemptFailed
) -> None:
    with pytest.raises(OutcomeUnknown, match="ask for the same again"):
        call(attempts(ScriptedWorker("a", first, then)), writes=True)
    with pytest.raises((StorageUnavailable, Overloaded, InvalidRequest)):
        call(attempts(ScriptedWorker("a", first, then)))


def test_an_answer_about_the_cell_itself_settles_an_open_attempt() -> None:
    with pytest.raises(CellConflict):
        call(attempts(ScriptedWorker("a", OPEN, error(CellConflict))), writes=True)
    opened: list[Exception] = []
    answered = attempts(ScriptedWorker("a", OPEN, Answer(200, b"yes")))
    assert call(answered, writes=True, opened=opened) == b"yes"
    assert opened == [OPEN]


def test_refusals_alone_are_the_last_ones_error() -> None:
    with pytest.raises(StorageUnavailable, match="nothing written within"):
        call(attempts(ScriptedWorker("a", REFUSED)), writes=True)
    with pytest.raises(WrongAnswer, match="not read within"):
        call(attempts(ScriptedWorker("a", WRONG)))
    with pytest.raises(Overloaded):
        call(attempts(ScriptedWorker("a", REFUSED, error(Overloaded))), writes=True)


def test_a_foreign_store_at_one_address_costs_an_attempt_and_at_all_is_an_error() -> None:
    neighbour = ScriptedWorker("neighbour", error(OtherHistory))
    sound = ScriptedWorker("sound", Answer(200, b"yes", "mine"))
    made = attempts(neighbour, sound)
    for _ in range(4):
        assert call(made, writes=True) == b"yes"
    assert neighbour.asked <= 1
    sound.answers = [error(OtherHistory)]
    with pytest.raises(OtherHistory):
        call(made, writes=True)


def test_all_answers_are_of_the_history_of_the_first_one() -> None:
    worker = ScriptedWorker(
        "a", Answer(200, b"old"), Answer(200, b"one", "mine"), Answer(200, b"two", "other")
    )
    made = attempts(worker)
    assert call(made) == b"old"
    assert vars(made)["_served"] == {}
    assert call(made) == b"one"
    assert made.history == "mine"
    with pytest.raises(OtherHistory, match="serves history other, and this client works with mine"):
        call(made)
    with pytest.raises(OutcomeUnknown, match="do not serve one store"):
        call(made, writes=True)
    assert made.history == "mine"
    assert worker.histories == [None, None, "mine", "mine"]


def test_a_call_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    worker = ScriptedWorker("a", REFUSED)
    made = attempts(worker, timeout_s=10.0)
    pauses: list[float] = []

    def sleep(pause: Pause) -> None:
        pauses.append(pause.seconds)
        now_s[0] += pause.seconds + 0.001

    with pytest.raises(StorageUnavailable):
        call(made, pause=sleep)
    assert 1_009 <= now_s[0] <= 1_010.01
    assert worker.asked <= len(pauses) + 1
    assert max(pauses) <= module._PAUSE_MAX_S
    assert pauses[0] <= module._PAUSE_FIRST_S
    assert sum(pauses[-5:]) > sum(pauses[:5]), "they grow"


def test_a_worker_that_is_away_for_an_hour_is_tried_for_an_hour() -> None:
    made = attempts(ScriptedWorker("a", REFUSED))
    assert all(
        run(module.pause(round_no, made.deadline(), "away")) for round_no in (0, 1, 2_000, 10**6)
    )


def test_each_attempt_records_why_it_has_no_answer() -> None:
    made = attempts(ScriptedWorker("a", REFUSED, error(Overloaded)), timeout_s=20.0)
    steps = made.call("GET", "/", b"", "json", deadline=made.deadline(), writes=False)
    first = next(steps)
    assert first.why == "no answer yet from h:1; it is tried for 20 s in all"
    paused = steps.throw(REFUSED)
    assert paused.why == "nobody listens; it is tried for 20 s in all"
    assert steps.send(None).why == paused.why
    again = steps.send(error(Overloaded))
    assert again.why == "a: said so; it is tried for 20 s in all"
