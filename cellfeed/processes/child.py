"""Starts the children of a command: processes of an instance, its local servers, trigger workers.

Each has a session of its own, so a Ctrl-C at the terminal reaches only the command, which ends them
in order. A child whose start fails, takes too long or is interrupted is killed: nothing has a
record of it yet, so nobody else could end it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, TypeVar

from cellfeed.processes.signals import raise_if_asked, uninterrupted
from cellfeed.store.errors import Unavailable

T = TypeVar("T")

START_TIMEOUT_S: Final = 60.0
"""How long a child may take until it serves. MariaDB needs 0.3 s, Kafka 7 s, and recovery after a
kill some more."""

_LOG_TAIL_CHARACTERS: Final = 1500


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a child, which need not serve yet. ``environment`` is added to the command's own;
    output is appended to ``log``, or goes where the command's goes. Raises OSError."""
    with nullcontext() if log is None else log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
            start_new_session=True,
            env={**os.environ, **environment},
        )


@contextmanager
def starting(
    launched: Callable[[], subprocess.Popen[bytes]],
) -> Iterator[subprocess.Popen[bytes]]:
    """Launches a child and kills it if anything is raised before the end of the context. A signal
    waits until the child has been launched."""
    process = None
    try:
        with uninterrupted():
            process = launched()
        yield process
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise


def await_served(
    name: str,
    process: subprocess.Popen[bytes],
    log: Path,
    served: Callable[[], T | None],
    given_up: Callable[[], bool],
    *,
    interval_s: float,
) -> T:
    """Returns the first result of ``served`` that is not None; calls it every ``interval_s``.
    Raises Unavailable with the end of the log when the child ends first or takes longer than
    ``START_TIMEOUT_S``. Also when ``given_up`` says that nobody wants it."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while (found := served()) is None:
        raise_if_asked()
        if given_up():
            raise Unavailable(f"{name} was asked to end before it served")
        if process.poll() is not None or time.monotonic() > deadline_s:
            tail = log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:].strip()
            raise Unavailable(f"{name} did not start; the end of {log}:\n{tail}")
        time.sleep(interval_s)
    return found
