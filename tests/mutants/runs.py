"""Runs the tests of planted bugs in a copy of the tree: the tree of the user is never changed.

A bug is killed when a named test fails or does not end within the limit. It survives when all of
them pass. Anything else says nothing about the tests and is an error: no test ran, a test skipped,
or the planted text does not import.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.mutants.planted import Mutant

TIME_LIMIT_S: Final = 150.0
"""For the named tests of one mutant: they end within a minute on a busy machine."""

_PYTEST: Final = (
    "-m",
    "pytest",
    "-q",
    "-x",
    "-p",
    "no:randomly",
    "-p",
    "no:xdist",
    "-p",
    "no:schemathesis",
    "-p",
    "no:faker",
    "-p",
    "no:cacheprovider",
)
_TESTS_FAILED: Final = 1


_MESSAGE_CHARACTERS: Final = 160


class Verdict(StrEnum):
    """The verdict of the named tests."""

    KILLED = "killed"
    SURVIVED = "survived"
    ERROR = "error"


@dataclass(frozen=True)
class Outcome:
    """``by``: the failure, or why the run says nothing."""

    verdict: Verdict
    by: str
    seconds: float


@contextmanager
def copied_tree(root: Path) -> Iterator[Path]:
    """A copy of the files that git knows or would add, with the environment of the original."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    with tempfile.TemporaryDirectory(prefix="cellfeed-mutants-") as directory:
        copy = Path(directory)
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (root / name).is_file() or (root / name).is_symlink():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(
                    root / name, copy / name, follow_symlinks=False
                )  # links lead to files of the copy
        if (root / ".venv").exists():
            (copy / ".venv").symlink_to(root / ".venv")
        yield copy


def run_tests(copy: Path, tests: Sequence[str], time_limit_s: float = TIME_LIMIT_S) -> Outcome:
    """Runs tests in the copy, and in every process that they start."""
    report = copy / "mutant-report.xml"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / ".hypothesis"),
    }
    began_s = time.monotonic()
    command = [sys.executable, *_PYTEST, f"--junit-xml={report}", *tests]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Outcome(
            Verdict.KILLED, f"no end within {time_limit_s:.0f} s", time.monotonic() - began_s
        )
    seconds = time.monotonic() - began_s
    failed, skipped, ran = _read_report(report)
    if process.returncode == _TESTS_FAILED and failed:
        return Outcome(Verdict.KILLED, failed[0], seconds)
    if process.returncode == 0 and ran > len(skipped):
        return (
            Outcome(Verdict.SURVIVED, f"{ran - len(skipped)} passed", seconds)
            if not skipped
            else Outcome(Verdict.ERROR, f"skipped: {skipped[0]}", seconds)
        )
    return Outcome(Verdict.ERROR, " ".join(said.split())[-400:], seconds)


def _read_report(path: Path) -> tuple[list[str], list[str], int]:
    """Of a report in JUnit's form: the tests that failed, those that skipped, and how many ran."""
    if not path.exists():
        return [], [], 0
    cases = list(ET.parse(path).iter("testcase"))  # written by the line above, not from outside
    collected = [
        case
        for case in cases
        if not any("collection failure" in (each.get("message") or "") for each in case)
    ]
    reasons = [
        (case.get("name"), each.get("message") or "")
        for case in collected
        for each in case
        if each.tag in ("failure", "error")
    ]
    failed = [
        f"{name}: {' '.join(message.split())[:_MESSAGE_CHARACTERS]}" for name, message in reasons
    ]
    return (
        failed,
        [f"{case.get('name')}" for case in collected if case.find("skipped") is not None],
        len(collected),
    )


def run_mutant(copy: Path, mutant: Mutant, time_limit_s: float = TIME_LIMIT_S) -> Outcome:
    """Plants the bug in the copy, runs its tests, and takes it out again."""
    path = copy / mutant.file
    before = path.read_bytes()
    try:
        path.write_text(mutant.planted(copy))
        return run_tests(copy, mutant.tests, time_limit_s)
    finally:
        path.write_bytes(before)
