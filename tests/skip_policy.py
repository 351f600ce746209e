"""A pytest plugin: a test that skips fails, unless ``accepted_skips.toml`` names it with a reason.

The rule holds with ``--no-unlisted-skips`` and wherever ``CI`` is ``true``: a server that is
missing turns the run red instead of hiding its tests. Elsewhere a skip stays a skip.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ACCEPTED_SKIPS: Final = Path(__file__).parent / "accepted_skips.toml"
_POLICY: Final = pytest.StashKey["tuple[AcceptedSkip, ...] | None"]()


@dataclass(frozen=True)
class AcceptedSkip:
    """``test`` matches from the start of a test's id, ``reason`` anywhere in the reason that the
    test gives."""

    test: str
    reason: str
    why: str

    def covers(self, test: str, reason: str) -> bool:
        return (
            re.match(self.test, test) is not None
            and re.search(self.reason, reason, re.DOTALL) is not None
        )


def accepted_skips(path: Path) -> tuple[AcceptedSkip, ...]:
    """The list in a file. An entry without a test, a reason or a why is an error."""
    entries = tuple(
        AcceptedSkip(**each) for each in tomllib.loads(path.read_text()).get("skip", [])
    )
    for each in entries:
        if not (each.test.strip() and each.reason.strip() and each.why.strip()):
            raise pytest.UsageError(f"{path}: an entry needs a test, a reason and a why: {each}")
    return entries


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("honest runs")
    group.addoption(
        "--no-unlisted-skips",
        action="store_true",
        help="a skip that the list of accepted ones does not name fails (CI=true sets it)",
    )
    group.addoption(
        "--accepted-skips",
        type=Path,
        default=ACCEPTED_SKIPS,
        metavar="FILE",
        help="the list of accepted skips (%(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_enforced = config.getoption("--no-unlisted-skips") or os.environ.get("CI") == "true"
    config.stash[_POLICY] = (
        accepted_skips(config.getoption("--accepted-skips")) if is_enforced else None
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _judge(report, item.config.stash[_POLICY])
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips while pytest collects it skips all of its tests."""
    report = yield
    _judge(report, collector.config.stash[_POLICY])
    return report


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason that a skipped report gives."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _judge(
    report: pytest.TestReport | pytest.CollectReport, policy: Sequence[AcceptedSkip] | None
) -> None:
    if policy is None or not report.skipped:
        return
    reason = reason_of(report)
    if not any(each.covers(report.nodeid, reason) for each in policy):
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} skipped, and the list of accepted skips does not name it: {reason}"
        )
