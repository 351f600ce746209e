"""A suspect is run while no other cell's try is on record; nothing waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cellfeed.bridge.triggers.process_death.quarantine import Quarantine
from tests.support.waiting import wait_until


@contextmanager
def call(
    quarantine: Quarantine, *, suspect: bool, stop: threading.Event | None = None
) -> Iterator[list[bool]]:
    """A call in a thread of its own, under way until the block is left; tells whether it was
    begun."""
    begun: list[bool] = []
    leave = threading.Event()

    def run() -> None:
        with quarantine.on_record(suspect, stop or threading.Event()) as may_run:
            begun.append(may_run)
            leave.wait(30)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield begun
    finally:
        leave.set()
        thread.join(30)


def test_calls_on_record_run_together() -> None:
    quarantine = Quarantine()
    with call(quarantine, suspect=False) as first, call(quarantine, suspect=False) as second:
        wait_until(lambda: first == second == [True], "both are under way")


def test_a_suspect_and_the_other_cells_wait_for_each_other() -> None:
    quarantine = Quarantine()
    with call(quarantine, suspect=False) as other:
        wait_until(lambda: other == [True], "it is under way")
        suspect_call = call(quarantine, suspect=True)
        suspect = suspect_call.__enter__()
        assert suspect == []
    wait_until(lambda: suspect == [True], "its turn has come")
    stop = threading.Event()
    with (
        call(quarantine, suspect=False, stop=stop) as later,
        call(quarantine, suspect=True, stop=stop) as another,
    ):
        assert later == another == []
        suspect_call.__exit__(None, None, None)
        wait_until(lambda: [True] in (later, another), "one of them has its turn")
        assert [] in (later, another)
        stop.set()


def test_a_worker_that_is_stopped_does_not_wait_for_the_quarantine() -> None:
    quarantine, stop = Quarantine(), threading.Event()
    with call(quarantine, suspect=True) as first:
        wait_until(lambda: first == [True], "it is under way")
        with call(quarantine, suspect=True, stop=stop) as second:
            stop.set()
            wait_until(lambda: second == [False], "it is given up")
        with call(quarantine, suspect=False, stop=stop) as third:
            wait_until(lambda: third == [False], "it is given up")


def test_a_call_that_never_returns_delays_no_cell_for_ever() -> None:
    quarantine = Quarantine(patience_s=0.05)
    with call(quarantine, suspect=True) as hangs:
        wait_until(lambda: hangs == [True], "it is under way")
        with call(quarantine, suspect=True) as suspect, call(quarantine, suspect=False) as other:
            wait_until(lambda: suspect == other == [True], "they continue beside it")
