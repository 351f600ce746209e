"""Loops beside the caller: restarted where that is safe, reported where it is not, never ended
unseen."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from cellfeed.store import background
from cellfeed.store.background import LoopTrouble, SupervisedThread, keep_running
from cellfeed.store.failpoints import FailpointReached


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(background, "PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(background, "PAUSE_MAX_S", 0.01)
    monkeypatch.setattr(
        background, "_registry", background._Registry()
    )  # a loop that another test has left counts for nothing here
    yield
    assert background.all_troubles() == []
    background.when_changed(lambda _: None)


def wait_for(reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


class Failing:
    """Raises at its first runs, then runs until it is released."""

    def __init__(self, times: int, error: BaseException) -> None:
        self.times, self.error = times, error
        self.runs = 0
        self.released = threading.Event()

    def __call__(self) -> None:
        self.runs += 1
        if self.runs <= self.times:
            raise self.error
        self.released.wait(30)

    def is_running(self) -> bool:
        return self.runs > self.times


def test_a_loop_that_ends_by_an_error_is_logged_with_its_trace_and_runs_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Failing(1, ValueError("no bytes"))
    loop = SupervisedThread("watch-n1", run)
    loop.start()
    wait_for(run.is_running)
    assert "watch-n1" in caplog.text
    assert "ValueError: no bytes" in caplog.text
    assert "Traceback" in caplog.text
    assert [(each.loop, each.is_dead) for each in background.all_troubles()] == [
        ("watch-n1", False)
    ]
    assert background.troubles() == []  # once may be an accident
    run.released.set()
    loop.join()


def test_a_loop_that_dies_again_and_again_makes_the_process_unready_until_it_is_steady(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Failing(background.DEATHS_REPORTED, ValueError("no bytes"))
    loop = SupervisedThread("watch-n1", run)
    loop.start()
    wait_for(run.is_running)
    [trouble] = background.troubles()
    assert "watch-n1 has died 3 times" in trouble
    assert caplog.text.count("Traceback") == 1  # the others came within TRACE_EVERY_S
    monkeypatch.setattr(background, "STEADY_S", 0.0)
    wait_for(lambda: not background.troubles())
    run.released.set()
    loop.join()


@pytest.mark.parametrize(
    ("restarts", "error"),
    [(False, ValueError("no bytes")), (True, FailpointReached("here"))],
    ids=["unsafe", "no exception"],
)
def test_a_loop_that_may_not_restart_is_dead_and_reported_until_its_owner_closes_it(
    restarts: bool, error: BaseException
) -> None:
    said: list[str] = []
    run = Failing(1, error)
    loop = SupervisedThread("writer-trips", run, restarts=restarts, died=said.append)
    loop.start()
    wait_for(lambda: bool(said))
    assert run.runs == 1
    [trouble] = background.troubles()
    assert trouble == said[0]
    assert "writer-trips is dead" in trouble
    loop.join()


def test_every_change_is_reported_and_a_reporter_that_fails_ends_no_loop() -> None:
    reports: list[list[LoopTrouble]] = []

    def report(troubles: list[LoopTrouble]) -> None:
        reports.append(list(troubles))
        raise OSError("no space left on device")

    background.when_changed(report)  # type: ignore[arg-type]
    run = Failing(2, ValueError("no bytes"))
    loop = SupervisedThread("watch-n1", run)
    loop.start()
    wait_for(run.is_running)
    run.released.set()
    loop.join()
    assert [[each.deaths for each in report] for report in reports] == [[1], [2], []]


def test_a_loop_that_waits_to_be_restarted_ends_at_once_when_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "PAUSE_FIRST_S", 60.0)
    run = Failing(1, ValueError("no bytes"))
    loop = SupervisedThread("watch-n1", run)
    loop.start()
    wait_for(lambda: bool(background.all_troubles()))
    began_s = time.monotonic()
    loop.join()
    assert time.monotonic() - began_s < 10
    assert not loop.is_alive()
    assert run.runs == 1


def test_a_task_is_restarted_and_ends_when_it_is_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = 0

    async def serve() -> None:
        runs_again = asyncio.Event()

        async def run() -> None:
            nonlocal runs
            runs += 1
            if runs == 1:
                raise ValueError("no bytes")
            runs_again.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(keep_running("gateway-acls", run))
        await runs_again.wait()
        assert [each.loop for each in background.all_troubles()] == ["gateway-acls"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(serve(), 10))
    assert "gateway-acls" in caplog.text


def test_a_forked_child_reports_no_loops_of_its_parent() -> None:
    run = Failing(1, FailpointReached("here"))
    loop = SupervisedThread("writer-trips", run)
    loop.start()
    wait_for(lambda: bool(background.troubles()))
    pid = os.fork()
    if pid == 0:
        try:
            loop.join()  # returns at once: the thread is the parent's
            os._exit(0 if background.troubles() == [] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert background.troubles()
    loop.join()


def test_a_task_whose_end_is_no_ordinary_error_is_dead_and_stays_in_the_report() -> None:
    async def run() -> None:
        raise FailpointReached("the end of the watcher")

    async def watcher() -> None:
        with pytest.raises(FailpointReached):
            await keep_running("gateway-heads", run)

    asyncio.run(watcher())
    [trouble] = background.all_troubles()
    assert (trouble.loop, trouble.is_dead) == ("gateway-heads", True)
    background._registry.in_trouble.clear()
