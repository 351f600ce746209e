"""The seed of fault runs that are given none: it follows from the date, so each day tries something
else and a failure can be repeated.

``CELLFEED_FAULT_SEED=20261124`` repeats the suite of that day. The suite prints it above its first
test, and each run in its summary.
"""

from __future__ import annotations

import os
import time
from typing import Final

VARIABLE: Final = "CELLFEED_FAULT_SEED"


def default_seed() -> int:
    """The one of the environment, or else the date of the day (UTC) as a number: 20261124."""
    return int(os.environ.get(VARIABLE) or time.strftime("%Y%m%d", time.gmtime()))


def pytest_report_header() -> str:
    """The line that pytest prints above the first test."""
    return f"fault runs: {VARIABLE}={default_seed()}"


def seed_with(parity: int) -> int:
    """The next seed that is even (0) or odd (1), for runs whose seed decides between two ways."""
    seed = default_seed()
    return seed if seed % 2 == parity else seed + 1
