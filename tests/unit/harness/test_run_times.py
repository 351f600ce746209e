"""The end of a run names the groups that took longest, and how long each worker idled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.run_times import group_of, time_lines


def report(nodeid: str, duration: float, stop: float, worker: str | None = "gw0") -> Any:
    found = SimpleNamespace(nodeid=nodeid, duration=duration, stop=stop, when="call")
    if worker:
        found.worker_id = worker
    return found


def lines(*reports: Any) -> list[str]:
    return list(time_lines(SimpleNamespace(stats={"passed": [*reports], "warnings": [object()]})))


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/a.py::test_x", "tests/a.py"),
        ("tests/a.py::test_x@kafka", "kafka"),
        ("tests/a.py::test_x[b@c]", "tests/a.py"),
        ("tests/a.py::test_x[b@c-]]@client grid", "client grid"),
    ],
)
def test_the_group_of_a_test_is_its_mark_or_its_file(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_the_longest_groups_and_the_idle_time_of_workers_are_named() -> None:
    assert lines(
        report("a.py::test_one@kafka", 20.0, 20.0),
        report("a.py::test_two@kafka", 30.0, 50.0),
        report("b.py::test_three", 9.0, 9.0, "gw1"),
        report("c.py::test_four", 1.0, 10.0, "gw1"),
    ) == [
        "time: 50 s in kafka (2 tests)",
        "time: 9 s in b.py (1 tests)",
        "time: workers ended before the last one by gw0 0 s, gw1 40 s",
    ]


def test_a_run_in_one_process_names_no_workers() -> None:
    assert lines(report("a.py::test_one", 6.0, 6.0, None)) == ["time: 6 s in a.py (1 tests)"]
