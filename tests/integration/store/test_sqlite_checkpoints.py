"""Checkpoints and commits of SQLite files never overlap, in any process, and the WAL stays
bounded."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

import cellfeed.store.engines.sqlite.files as sqlite_files
from cellfeed.store.engines.sqlite.files import SqliteFile, connect
from cellfeed.store.failpoints import passes, set_failpoint


def fill(file: SqliteFile, commits: int, size: int = 4096) -> None:
    for _ in range(commits):
        with file.write(size) as connection:
            connection.execute("INSERT INTO row VALUES (?)", (b"x" * size,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = SqliteFile(tmp_path / "file.sqlite3")
    with file.write() as connection:
        connection.execute("CREATE TABLE row (value BLOB)")
    file.close()
    return tmp_path / "file.sqlite3"


def test_no_connection_checkpoints_by_itself(path: Path) -> None:
    connection = connect(path)
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    connection.close()


def test_the_wal_stays_bounded_while_two_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_files, "_CHECKPOINT_BYTES", 1 << 20)
    files = [SqliteFile(path) for _ in range(2)]
    threads = [threading.Thread(target=fill, args=(file, 400)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wal_bytes = path.with_name(path.name + "-wal").stat().st_size
    with files[0].read() as connection:
        assert connection.execute("SELECT count(*) FROM row").fetchone() == (800,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert wal_bytes < 8 << 20, "800 commits of some 24 kB each are 19 MB without checkpoints"
    for file in files:
        file.close()


def test_nobody_commits_while_a_checkpoint_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_files, "_CHECKPOINT_BYTES", 0)
    mine, other = SqliteFile(path), sqlite3.connect(path, isolation_level=None, timeout=0)
    set_failpoint("sqlite.checkpoint.inside", "sleep:1.0")
    thread = threading.Thread(target=fill, args=(mine, 1))
    thread.start()
    refused = 0
    while thread.is_alive():
        if passes("sqlite.checkpoint.inside"):
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
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_files, "_CHECKPOINT_BYTES", 0)
    file = SqliteFile(path)
    fill(file, 1)
    assert file._checkpointer is not None
    file._checkpointer.close()
    fill(file, 3)
    with file.read() as connection:
        assert connection.execute("SELECT count(*) FROM row").fetchone() == (4,)
    file.close()
