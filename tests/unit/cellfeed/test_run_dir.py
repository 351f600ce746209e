"""The run directory: the system says which process is alive, and nobody else's process is ever
touched."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from cellfeed.processes.reports import ProcessEntry, Ready
from cellfeed.run_dir import RunDir
from cellfeed.store.background import LoopTrouble
from cellfeed.store.errors import InvalidRequest, NotFound


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run")
    directory.make()
    return directory


def test_a_process_that_was_given_the_pid_of_a_dead_one_is_neither_taken_for_it_nor_killed(
    run_dir: RunDir,
) -> None:
    run_dir.say_ready("worker", {})
    assert run_dir.alive("worker")
    mine = run_dir.ready("worker")
    assert mine is not None
    earlier = Ready(mine.pid, mine.began_s - 1.0, {})
    (run_dir.path / "ready" / "worker.json").write_bytes(msgspec.json.encode(earlier))
    assert not run_dir.alive("worker")
    assert run_dir.stop_process("worker"), "and this test is still alive"


def test_a_process_stays_known_after_a_change_of_the_clock(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir.say_ready("worker", {})
    # Setting the clock by an hour moves the time of boot by an hour, for every program that asks
    # the system.
    moved = psutil.boot_time() + 3600
    monkeypatch.setattr("psutil._psplatform.boot_time", lambda: moved)
    assert abs(psutil.Process().create_time() - moved) < 10 * 365 * 86_400
    assert psutil.boot_time() == moved
    assert run_dir.alive("worker")


def test_loops_that_died_are_those_of_the_process_that_runs(run_dir: RunDir) -> None:
    now_s = time.monotonic()
    died = LoopTrouble("watch-n1", "ValueError: no bytes", 1, False, now_s)
    dead = LoopTrouble("writer-trips", "MemoryError: ", 1, True, now_s - 10_000)
    over = LoopTrouble("buffer-drain", "ValueError: no bytes", 1, False, now_s - 10_000)
    assert run_dir.troubles("worker") == []
    run_dir.say_troubles("worker", [died, dead, over])
    assert run_dir.troubles("worker") == [], "a process of this name never said that it was ready"
    run_dir.say_ready("worker", {})
    assert run_dir.troubles("worker") == [str(died), str(dead)]
    run_dir.say_ready("worker", {}, os.getppid())
    assert run_dir.troubles("worker") == [], "another process has its place"
    run_dir.say_ready("worker", {})
    (run_dir.path / "troubles" / "worker.json").write_text('{"pid": 1')
    assert run_dir.troubles("worker") == []


def test_status_shows_work_that_a_process_stopped_while_that_process_runs(run_dir: RunDir) -> None:
    run_dir.say_stopped("lake", ["partition 3 is stopped: gone"])
    assert run_dir.troubles("lake") == [], "a process of this name never said that it was ready"
    run_dir.say_ready("lake", {})
    assert run_dir.troubles("lake") == ["partition 3 is stopped: gone"]
    run_dir.say_ready("lake", {}, os.getppid())
    assert run_dir.troubles("lake") == [], "another process has its place"
    run_dir.say_ready("lake", {})
    run_dir.say_stopped("lake", [])
    assert run_dir.troubles("lake") == []


def test_a_torn_or_missing_ready_file_names_no_process(run_dir: RunDir) -> None:
    assert not run_dir.alive("worker")
    (run_dir.path / "ready" / "worker.json").write_text('{"pid": 1')
    assert not run_dir.alive("worker")
    assert run_dir.kept_port("worker", "http", 0) == 0


def test_a_chosen_port_is_kept_and_a_configured_one_takes_precedence(
    run_dir: RunDir,
) -> None:
    run_dir.say_ready("worker", {"http": 4711})
    assert run_dir.kept_port("worker", "http", 0) == 4711
    assert run_dir.kept_port("worker", "http", 7420) == 7420
    assert run_dir.kept_port("worker", "other", 0) == 0


def test_entries_keep_their_order_and_are_replaced_by_name(run_dir: RunDir) -> None:
    for name, pid in (("worker", 1), ("gateway", 2), ("worker", 3)):
        run_dir.record(ProcessEntry(name, "kind", pid, {}, "log"))
    assert [(entry.name, entry.pid) for entry in run_dir.processes()] == [
        ("worker", 3),
        ("gateway", 2),
    ]
    assert run_dir.process("gateway").pid == 2
    with pytest.raises(NotFound, match=r"no process 'other'; it has worker, gateway"):
        run_dir.process("other")
    run_dir.forget_all()
    assert run_dir.processes() == []


def test_a_damaged_list_of_processes_is_reported(run_dir: RunDir) -> None:
    (run_dir.path / "processes.json").write_text("[{}]")
    with pytest.raises(InvalidRequest, match=r"processes\.json is damaged"):
        run_dir.processes()


def _record_many(path: Path, number: int) -> None:
    directory = RunDir(path)
    for count in range(20):
        directory.record(ProcessEntry(f"p{number}", "kind", count, {}, "log"))


@pytest.mark.integration
def test_several_writers_of_the_list_lose_nothing(run_dir: RunDir) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_record_many, args=(run_dir.path, number)) for number in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert {(entry.name, entry.pid) for entry in run_dir.processes()} == {
        ("p0", 19),
        ("p1", 19),
        ("p2", 19),
    }


def test_the_supervisors_lock_ends_with_its_process(run_dir: RunDir) -> None:
    assert run_dir.supervisor_pid() is None
    with run_dir.supervised():
        assert run_dir.supervisor_pid() == os.getpid()
        with pytest.raises(InvalidRequest, match="cellfeed down"), run_dir.supervised():
            pass
    assert run_dir.supervisor_pid() is None
