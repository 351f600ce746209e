"""A pytest plugin: one block at the end of a run counts tests that passed, failed, skipped and ran
again, and names the longest groups and the seeds.

A test runs again once (``--reruns 1`` of pytest-rerunfailures), so one that fails twice fails. A
run with more reruns than ``--reruns-max`` fails, though every test passed in the end: a machine
stands still now and then, not all the time. The block comes before pytest's own last line, which
outside tools read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import pytest

from tests.run_times import time_lines
from tests.skip_policy import reason_of

RERUNS_MAX: Final = 5
"""Of several thousand tests on two busy cores: more of them are a defect of the tests or of the
product."""

RERUN_SHOWN_CHARACTERS: Final = 3_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("honest runs")
    group.addoption(
        "--reruns-max",
        type=int,
        default=RERUNS_MAX,
        metavar="N",
        help="a run with more reruns fails (default: %(default)s)",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A parameter ``seed`` of a test is one of the run's seeds; a test that draws its own calls
    ``record_property("seed", n)``."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "seed" in callspec.params:
        item.user_properties.append(("seed", callspec.params["seed"]))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        terminal is not None
        and _too_many_reruns(terminal)
        and session.exitstatus == pytest.ExitCode.OK
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None]:
    """Outermost, so that the block comes after every other section."""
    yield
    reruns = terminalreporter.stats.get("rerun", [])
    for report in reruns:
        terminalreporter.write_line(
            f"ran again: {report.nodeid}\n{str(report.longrepr)[-RERUN_SHOWN_CHARACTERS:]}"
        )
    terminalreporter.write_sep("=", "run summary")
    for line in _summary_lines(terminalreporter):
        terminalreporter.write_line(line)
    if _too_many_reruns(terminalreporter):
        most = terminalreporter.config.getoption("--reruns-max")
        terminalreporter.write_line(
            f"FAILED: {len(reruns)} reruns, and a run may have {most}", red=True, bold=True
        )


def _too_many_reruns(terminal: Any) -> bool:
    most: int = terminal.config.getoption("--reruns-max")
    return len(terminal.stats.get("rerun", [])) > most


def _summary_lines(terminal: Any) -> Generator[str]:
    counts = {
        name: len(terminal.stats.get(name, []))
        for name in ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "rerun")
    }
    yield ", ".join(f"{name} {count}" for name, count in counts.items())
    from tests.support.server_source import server_source  # a plugin that others' runs load too

    yield str(server_source())
    skipped: dict[str, list[str]] = {}
    for report in terminal.stats.get("skipped", []):
        skipped.setdefault(reason_of(report), []).append(report.nodeid)
    for reason, tests in skipped.items():
        yield f"skipped {len(tests)}: {' '.join(reason.split())[:300]}"
        yield from (f"    {test}" for test in tests)
    for report in terminal.stats.get("rerun", []):
        yield f"rerun: {report.nodeid}"
    yield from time_lines(terminal)
    yield from _seed_lines(terminal)


def _seed_lines(terminal: Any) -> Generator[str]:
    order = getattr(terminal.config.option, "randomly_seed", None)
    if order is None:
        yield "seeds: none; the order is as written, and Hypothesis draws its own"
    else:
        yield f"seeds: order and Hypothesis {order} (SEED={order} repeats them)"
    drawn: dict[str, set[str]] = {}
    for report in (each for reports in terminal.stats.values() for each in reports):
        for name, value in getattr(report, "user_properties", ()):
            if name == "seed":
                drawn.setdefault(report.nodeid.partition("[")[0], set()).add(str(value))
    for test, seeds in sorted(drawn.items()):
        yield f"seeds of {test}: {', '.join(sorted(seeds))}"
