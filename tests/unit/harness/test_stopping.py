"""Processes are stopped outside their commits."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.stopping import NeverOutsideACommit, holds_a_write_lock, stop_outside_a_commit
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

_WRITER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("CREATE TABLE t (n)")
while True:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO t VALUES (1)")
    print("inside", flush=True)
    time.sleep(float(sys.argv[2]))
    connection.execute("COMMIT")
    time.sleep(0.03)
"""


class Writer:
    def __init__(self, path: Path, inside_s: float) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), str(inside_s)], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def often_inside(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "state.sqlite3", 0.1)
    yield writer
    writer.end()


@pytest.fixture
def always_inside(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "state.sqlite3", 3600)
    yield writer
    writer.end()


def test_a_stopped_process_blocks_no_writer(often_inside: Writer) -> None:
    process = psutil.Process(often_inside.process.pid)
    for _ in range(5):
        stop_outside_a_commit(process)
        with closing(sqlite3.connect(often_inside.path, timeout=0)) as other, other:
            other.execute("INSERT INTO t VALUES (2)")
        process.resume()


def test_a_process_that_is_always_inside_a_commit_continues(always_inside: Writer) -> None:
    process = psutil.Process(always_inside.process.pid)
    assert holds_a_write_lock(process.pid)
    with pytest.raises(NeverOutsideACommit, match=f"process {process.pid} was stopped"):
        stop_outside_a_commit(process)
    wait_until(lambda: process.status() != psutil.STATUS_STOPPED, "it continues")
