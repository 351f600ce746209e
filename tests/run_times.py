"""Where a run's time goes: the groups and files that take longest, and when each worker ended.

A worker that ends long before the others waited for a group that began late, or that nobody
divided (:mod:`tests.turns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

SHOWN: Final = 20
"""Groups and files in the list."""

SHOWN_FROM_S: Final = 5.0
"""Shorter ones are not worth a line."""


def time_lines(terminal: Any) -> Iterator[str]:
    """One line for each of the longest groups, and one for the workers of a run with several."""
    groups, tests, ends = Counter[str](), Counter[str](), dict[str, float]()
    for report in (each for reports in terminal.stats.values() for each in reports):
        if not hasattr(report, "duration"):
            continue  # a warning has none
        group = group_of(report.nodeid)
        groups[group] += report.duration
        tests[group] += report.when == "call"
        if worker := getattr(report, "worker_id", None):
            ends[worker] = max(ends.get(worker, 0.0), report.stop)
    for group, took_s in groups.most_common(SHOWN):
        if took_s >= SHOWN_FROM_S:
            yield f"time: {took_s:.0f} s in {group} ({tests[group]} tests)"
    if len(ends) > 1:
        last_s = max(ends.values())
        idle = (f"{worker} {last_s - end:.0f} s" for worker, end in sorted(ends.items()))
        yield f"time: workers ended before the last one by {', '.join(idle)}"


def group_of(nodeid: str) -> str:
    """The group of a test, which one worker runs; its file where it has none. A parameter may have
    an ``@``, too."""
    file, _, rest = nodeid.partition("::")
    behind = rest.rpartition("]")[2] if "]" in rest else rest
    return behind.partition("@")[2] or file
