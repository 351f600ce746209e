"""Stops a process where it keeps nobody else from writing.

The hosts of a fault run share embedded SQLite files. A process that SIGSTOP meets inside a commit
keeps the file's write lock for as long as it stands still. Everybody else then waits for that lock,
and the run shows nothing of its subject.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import psutil

from tests.support.waiting import wait_until

_TRIES: Final = 100
_LET_ON_S: Final = 0.02
"""How long a process continues before it is stopped again: longer than most commits."""

_LOCKS: Final = Path("/proc/locks")


class NeverOutsideACommit(RuntimeError):
    """Each time that the process was stopped, it held a write lock."""


def stop_outside_a_commit(process: psutil.Process) -> None:
    """SIGSTOP, and returns when the process stands still and holds no write lock of a file. Raises
    NeverOutsideACommit, and lets the process continue, when that does not come about."""
    for _ in range(_TRIES):
        process.suspend()
        wait_until(
            lambda: process.status() == psutil.STATUS_STOPPED, "a stopped process stands still"
        )
        if not holds_a_write_lock(process.pid):
            return
        process.resume()
        time.sleep(_LET_ON_S)
    raise NeverOutsideACommit(
        f"process {process.pid} was stopped {_TRIES} times, each time inside a commit"
    )


def holds_a_write_lock(pid: int) -> bool:
    """Whether a process holds an exclusive POSIX lock, as SQLite takes it for a commit. Lines that
    wait for a lock (``->``) are of no process that has it."""
    held = [line.split()[1:] for line in _LOCKS.read_text().splitlines()]
    return any(
        words[0] == "POSIX" and words[2] == "WRITE" and words[3] == str(pid)
        for words in held
        if words[0] != "->"
    )
