"""Runs SQL for the console: in a process of its own, which is killed when its time is over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from cellfeed.console.query.sandbox import ANSWER_BYTES_MAX, TIME_S, Answer, Asked
from cellfeed.store.errors import InvalidRequest, Overloaded, Unavailable

SQL_CHARACTERS_MAX: Final = 10_000
QUERIES_MAX: Final = 2
"""Queries at a time: each may take a whole core."""

KILL_S: Final = TIME_S + 5.0
"""The process starts and reads files within these five seconds more."""

_KEPT: Final = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR")
"""Of the environment: no secret goes to the query's process."""

PLACES: Final = threading.BoundedSemaphore(QUERIES_MAX)


def run_sql(sql: str, files: Sequence[str], *, kill_s: float = KILL_S) -> Answer:
    """The rows that a SELECT gives. ``files``: Parquet files with the rows of cells. Blocks. Raises
    InvalidRequest for SQL that cannot be run, Overloaded, Unavailable."""
    if not sql.strip() or len(sql) > SQL_CHARACTERS_MAX:
        raise InvalidRequest(f"a query has 1 to {SQL_CHARACTERS_MAX} characters")
    if not PLACES.acquire(blocking=False):
        raise Overloaded(f"{QUERIES_MAX} queries are running, which is the most allowed: try again")
    try:
        content, code = _asked(Asked(sql, list(files)), kill_s)
    finally:
        PLACES.release()
    try:
        found = msgspec.json.decode(content, type=Answer)
    except msgspec.MsgspecError:
        raise InvalidRequest(
            f"the query ended without an answer ({_end(code)}): it takes too much memory or time"
        ) from None
    if found.error:
        raise InvalidRequest(found.error)
    return found


def _asked(asked: Asked, kill_s: float) -> tuple[bytes, int]:
    """The output of the query's process, and its exit code."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "cellfeed.console.query.sandbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
        )
    except OSError as error:
        raise Unavailable(f"no process can be started for the query: {error}") from None
    timer = threading.Timer(kill_s, process.kill)
    timer.daemon = True
    timer.start()
    with process:
        try:
            assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 (for the type checker)
            with suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(asked))
                process.stdin.close()
            content = process.stdout.read(ANSWER_BYTES_MAX + 1)
        finally:
            timer.cancel()
            process.kill()  # one that has written its answer has nothing left to do
    return content, process.returncode


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"
