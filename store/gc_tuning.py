"""Python's collector of reference cycles, in processes that serve.

It looks for cycles whenever some hundred objects more were made than freed. A process that handles
cells makes tens of thousands at a time, none of them in a cycle. It pays an eighth to a quarter of
its CPU, and finds nothing. So the collector is made to run less often. The few cycles (an error
with its traceback, a closed connection) wait a little longer, and cost some megabytes at most.
"""

from __future__ import annotations

import gc
from typing import Final

COLLECT_AFTER_OBJECTS: Final = 50_000
"""New objects after which the collector looks for cycles; Python's own figure is 700."""


def collect_seldom() -> None:
    """To be called once a process has started: its imported objects live as long as it does, and
    are not walked again either."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
