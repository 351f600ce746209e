"""Checkpoints of SQLite files: no commit of any process starts the WAL again beside one, the WAL
stays bounded, and a commit moves a bounded part of it."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.engines.sqlite import checkpoints
from cellfeed.store.engines.sqlite.connect import connect
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.wal import Wal, readers
from cellfeed.store.failpoints import passes, set_failpoint, unwatch_failpoint, watch_failpoint
from tests.support.waiting import wait_until

PAGE = 4096
BESIDE = "sqlite.checkpoint.beside"
INSIDE = "sqlite.checkpoint.inside"


def fill(file: SqliteFile, commits: int, rows: int = 1) -> None:
    for _ in range(commits):
        with file.write() as connection:
            for _ in range(rows):
                connection.execute("INSERT INTO row VALUES (?)", (b"x" * PAGE,))


def rows_in(file: SqliteFile) -> int:
    with file.read() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        [(count,)] = connection.execute("SELECT count(*) FROM row").fetchall()
    return int(count)


def limits(
    monkeypatch: pytest.MonkeyPatch, checkpoint: int, step: int, full: int = 1 << 30
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FRAMES", checkpoint)
    monkeypatch.setattr(checkpoints, "STEP_FRAMES", step)
    monkeypatch.setattr(checkpoints, "FULL_FRAMES", full)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = SqliteFile(tmp_path / "file.sqlite3")
    with file.write() as connection:
        connection.execute("CREATE TABLE row (value BLOB)")
    file.close()
    return tmp_path / "file.sqlite3"


@pytest.fixture
def file(path: Path) -> Iterator[SqliteFile]:
    with closing(SqliteFile(path)) as opened:
        yield opened


@pytest.fixture
def unwatched() -> Iterator[None]:
    yield
    for name in (BESIDE, INSIDE):
        unwatch_failpoint(name)


def moved_by(connection: sqlite3.Connection) -> int:
    """Frames of the WAL that are in the database, after a checkpoint of somebody else's."""
    [(_, _, moved)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return int(moved)


def test_no_connection_checkpoints_on_commit(path: Path) -> None:
    connection = connect(path)
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    connection.close()


def test_the_wal_stays_bounded_while_two_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, checkpoint=200, step=50, full=400)
    files = [SqliteFile(path) for _ in range(2)]
    threads = [threading.Thread(target=fill, args=(file, 400)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wal_bytes = path.with_name(path.name + "-wal").stat().st_size
    assert rows_in(files[0]) == 800
    assert wal_bytes < 8 << 20, "800 commits of some 24 kB each are 19 MB without checkpoints"
    for file in files:
        file.close()


def test_large_transactions_do_not_keep_the_wal_from_being_emptied(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, checkpoint=100, step=20, full=200)
    monkeypatch.setattr(checkpoints, "WAIT_S", 30.0)
    fill(file, 60, rows=100)
    assert Path(f"{file.path}-wal").stat().st_size < 600 * PAGE, "60 commits have 6,000 frames"
    assert rows_in(file) == 6000


@pytest.mark.usefixtures("unwatched")
def test_a_commit_moves_at_most_one_step_of_frames(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, checkpoint=100, step=20)
    found: list[tuple[int, int]] = []
    kept = file._checkpoints
    watch_failpoint(INSIDE, lambda: found.append((kept._wal.frames(), kept._moved)))
    fill(file, 500)
    assert found
    assert all(frames - moved <= 20 for frames, moved in found), found


@pytest.mark.usefixtures("unwatched")
def test_one_checkpoint_runs_at_a_time_and_no_commit_moves_frames_meanwhile(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits(monkeypatch, checkpoint=20, step=5)
    begun, may_end = threading.Semaphore(0), threading.Event()

    def stand_still() -> None:
        begun.release()
        assert may_end.wait(30)

    watch_failpoint(BESIDE, stand_still)
    fill(file, 100)
    assert begun.acquire(timeout=30)
    passed = passes(INSIDE)
    fill(file, 100)
    assert not begun.acquire(blocking=False), "a second thread moves frames beside the first"
    assert not caplog.records, "a second thread tried"
    assert passes(INSIDE) == passed, "a commit moves frames beside the thread"
    may_end.set()
    wait_until(file._checkpoints._idle.is_set, "the checkpoint has ended")


@pytest.mark.usefixtures("unwatched")
def test_commits_append_beside_a_checkpoint_and_none_starts_the_wal_again(
    path: Path, file: SqliteFile
) -> None:
    """The race of SQLite's WAL-reset bug, at its place: everything is moved as a checkpoint begins,
    so without a pin the next commit starts the WAL again under it."""
    fill(file, 50)
    rounds: list[bytes] = []
    with closing(Wal(path)) as wal, closing(sqlite3.connect(path, isolation_level=None)) as other:

        def another_process_moves_all_and_commits() -> None:
            rounds.append(wal.round())
            assert moved_by(other) == wal.frames()
            other.execute("INSERT INTO row VALUES ('of another')")
            rounds.append(wal.round())

        watch_failpoint(BESIDE, another_process_moves_all_and_commits)
        file._checkpoints._move_beside()
        assert len(rounds) == 2
        assert rounds[0] == rounds[1], "the WAL started again under a checkpoint"
    assert rows_in(file) == 51


def test_no_put_commits_while_a_writer_moves_the_remaining_frames(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FRAMES", 0)
    mine, other = SqliteFile(path), sqlite3.connect(path, isolation_level=None, timeout=0)
    set_failpoint(INSIDE, "sleep:1.0")
    thread = threading.Thread(target=fill, args=(mine, 1))
    thread.start()
    refused = 0
    while thread.is_alive():
        if passes(INSIDE):
            try:
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
            except sqlite3.OperationalError:
                refused += 1
        time.sleep(0.01)
    assert refused > 10, "another connection could write during the checkpoint"
    other.close()
    mine.close()


def test_a_checkpoint_that_cannot_run_costs_no_commit(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FRAMES", 0)
    fill(file, 1)
    assert file._checkpoints._checkpointer is not None
    file._checkpoints._checkpointer.close()
    fill(file, 3)
    assert rows_in(file) == 4


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM row").fetchall()
print("reads", flush=True)
sys.stdin.readline()
"""


def test_a_reader_that_stops_checkpoints_is_named_and_the_wal_shrinks_when_it_ends(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits(monkeypatch, checkpoint=50, step=10, full=100)
    fill(file, 1)
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(file.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        assert readers(file.path) == [reader.pid]
        with caplog.at_level(logging.WARNING):
            fill(file, 200)
            wait_until(file._checkpoints._idle.is_set, "the checkpoint ends")
        told = [each for each in caplog.messages if f"process {reader.pid} reads" in each]
        assert 1 <= len(told) <= 4, caplog.messages
        reader.communicate("end\n")
    assert readers(file.path) == []
    before = file._checkpoints._wal.round()
    written = 201
    while file._checkpoints._wal.round() == before:
        fill(file, 1)
        written += 1
        assert written < 1000, "the WAL did not start again"
    assert rows_in(file) == written


def test_the_frames_of_a_wal_are_those_that_sqlite_counts(path: Path) -> None:
    with closing(connect(path)) as connection, closing(Wal(path)) as wal:
        assert (wal.frames(), wal.has_frames(1), wal.round()) == (0, False, b"")
        for commits in (1, 7, 300, 2, 40):
            for _ in range(commits):
                connection.execute("INSERT INTO row VALUES (?)", (b"x" * 10_000,))
            [(_, frames, _)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            assert (wal.frames(), wal.used_bytes()) == (frames, frames * (PAGE + 24))
            assert (wal.has_frames(frames), wal.has_frames(frames + 1)) == (True, False)


def test_closing_a_file_twice_closes_no_descriptor_of_another_file(path: Path) -> None:
    file = SqliteFile(path)
    file.close()
    with path.open("rb") as others:  # has the lowest number that is free
        file.close()
        assert others.read(6) == b"SQLite"
