"""Parts of a process that advance, wait, have nothing to do, or stand."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Sequence

import pytest

from cellfeed.store import background, progress
from cellfeed.store.background import SupervisedThread
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.commit.group_commit import GroupCommitWriter
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FailpointReached
from cellfeed.store.progress import Kind, ProgressLimits, Watch, set_limits, unalive, unready
from tests.support.rides import ride
from tests.support.waiting import wait_until


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(progress, "_registry", progress._Registry())
    monkeypatch.setattr(background, "_registry", background._Registry())
    yield Clock()
    assert background.all_troubles() == []


def codes() -> list[str]:
    return [each.code for each in unready()]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("event-loop", "event-loop-stands"),
        ("loop", "loop-stands"),
        ("writer", "writer-stands"),
        ("storage", "storage-away"),
        ("coordination", "coordination-away"),
        ("source", "source-away"),
        ("follower", "follower-stands"),
    ],
)
def test_a_part_stands_when_nothing_came_for_longer_than_the_limit_of_its_kind(
    clock: Clock, kind: Kind, code: str
) -> None:
    limit_s = ProgressLimits().of(kind)
    watch = Watch("part", kind, clock_s=clock)
    clock.now_s += limit_s
    assert unready() == []
    clock.now_s += 1
    [reason] = unready()
    assert (reason.code, reason.part, reason.for_s) == (code, "part", limit_s + 1)
    assert "part" in reason.message
    watch.moved()
    assert unready() == []


def test_a_reason_lasts_until_the_part_moves_and_waiting_is_counted_from_its_beginning(
    clock: Clock,
) -> None:
    watch = Watch("part", "loop", is_idle=True, clock_s=clock)
    clock.now_s += 1_000
    assert unready() == []
    watch.waits("no answer")
    clock.now_s += 20
    watch.waits()
    clock.now_s += 20
    [reason] = unready()
    assert reason.message.endswith("for 40 s (limit 30 s): no answer")
    watch.idle()
    clock.now_s += 1_000
    assert unready() == []


def test_limits_of_the_configuration_are_in_force_for_watches_that_are_there(clock: Clock) -> None:
    watch = Watch("part", "loop", clock_s=clock)
    clock.now_s += 5
    assert unready() == []
    set_limits(ProgressLimits(loop_s=4))
    assert codes() == ["loop-stands"]
    watch.close()
    assert unready() == []


def test_a_watch_goes_with_its_owner(clock: Clock) -> None:
    watch = Watch("part", "loop", clock_s=clock)
    clock.now_s += 100
    assert codes() == ["loop-stands"]
    del watch
    gc.collect()
    assert unready() == []


def test_only_a_failure_that_a_restart_mends_makes_a_process_dead(clock: Clock) -> None:
    watches = [Watch(kind, kind, clock_s=clock) for kind in ("loop", "coordination", "writer")]
    clock.now_s += 1_000
    assert len(codes()) == len(watches)
    assert unalive() == []
    turns = Watch("of the worker", "event-loop", clock_s=clock)
    clock.now_s += 11
    assert [each.code for each in unalive()] == ["event-loop-stands"]
    turns.close()


def test_a_dead_loop_is_a_reason_of_both(clock: Clock) -> None:
    def run() -> None:
        raise FailpointReached("the end")

    loop = SupervisedThread("watcher", run)
    loop.start()
    wait_until(lambda: bool(unready()), "the loop is dead")
    assert codes() == ["loop-dead"]
    assert "watcher is dead" in unready()[0].message
    assert [each.part for each in unalive()] == ["watcher"]
    loop.join()
    assert unready() == unalive() == []


def test_a_forked_child_has_no_watches(clock: Clock) -> None:
    watch = Watch("part", "loop", clock_s=clock)
    clock.now_s += 100
    assert codes() == ["loop-stands"]
    if (child := os.fork()) == 0:
        os._exit(len(unready()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    watch.close()


def test_puts_that_wait_for_a_writer_that_hangs_are_a_reason_until_they_end(
    clock: Clock, datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(ProgressLimits(writer_s=0.001))
    engine, begun, released = datastore.engine, threading.Event(), threading.Event()
    put = engine.put

    def hang(cells: Sequence[NewCell]) -> list[PutResult]:
        begun.set()
        released.wait(60)
        return put(cells)

    monkeypatch.setattr(engine, "put", hang)
    writer = GroupCommitWriter(engine, lambda: None)
    first = writer.queue([ride(1)])
    assert begun.wait(60)
    wait_until(lambda: codes() == ["writer-stands"], "the writer stands", 20)
    released.set()
    first.result(60)
    wait_until(lambda: codes() == [], "the writer has nothing to do", 20)
    writer.close()
