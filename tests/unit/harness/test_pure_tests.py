"""No test of `make test-fast` starts a process."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_a_test_without_a_mark_cannot_start_a_process() -> None:
    with pytest.raises(RuntimeError, match=r"cannot_start_a_process starts a process: mark it"):
        subprocess.run([sys.executable, "-c", "pass"], check=True)


@pytest.mark.integration
def test_a_marked_test_can_start_a_process() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)
