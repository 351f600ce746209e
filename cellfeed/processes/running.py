"""The running process that a ready file names, and its end."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Final

import psutil

STOP_TIMEOUT_S: Final = 40.0
"""From SIGTERM to SIGKILL: longer than the longest drain (a trigger's, 30 s)."""


def began_s(process: psutil.Process) -> float:
    """When a process began, in seconds from the machine's start."""
    # psutil adds the time of boot by the wall clock, which moves when the clock is set; taken off
    # again, clock ticks since boot are left.
    return process.create_time() - psutil.boot_time()


def running_process(pid: int, began: float) -> psutil.Process | None:
    """The process that had this pid and began then; None when it has ended, also where another
    one has its pid now."""
    try:
        process = psutil.Process(pid)
        if abs(began_s(process) - began) < 0.05 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except psutil.NoSuchProcess:
        pass
    return None


def end_process(process: psutil.Process) -> bool:
    """SIGTERM, and SIGKILL when it does not end within STOP_TIMEOUT_S; False when it had to be
    killed."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(10)
            return False
    return True
