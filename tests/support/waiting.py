"""Waiting for the act of another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def wait_until(done: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Fails the test when ``done()`` is not true within ``timeout_s`` seconds; ``what`` names the
    awaited event."""
    deadline_s, pause_s = time.monotonic() + timeout_s, 0.001
    while not done():
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {timeout_s} s: {what}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)
