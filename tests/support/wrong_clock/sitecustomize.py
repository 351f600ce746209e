"""Python imports this at its start where its folder is on ``PYTHONPATH``: gives the process the
wall clock of a file, see ``fake_clock.py``.

The monotonic clock stays. (libfaketime 0.9.10 breaks ``time.sleep`` where it leaves the monotonic
clock alone.)
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_file = Path(os.environ["CELLFEED_TEST_CLOCK"])
_right_ns = time.time_ns


def _time_ns() -> int:
    return _right_ns() + int(_file.read_text()) * 1_000_000_000


time.time_ns = _time_ns
time.time = lambda: _time_ns() / 1e9
