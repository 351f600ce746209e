"""The pure tests of this folder start no process; those marked ``integration`` may."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_pure: list[str] = []
"""The pure test that runs, if one does."""


def _no_process(event: str, _: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _pure:
        raise RuntimeError(f"{_pure[-1]} starts a process: mark it as integration")


sys.addaudithook(_no_process)


@pytest.fixture(autouse=True)
def _starts_no_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """`make test-fast` runs whatever has no mark, and is to end within a minute."""
    if request.node.get_closest_marker("integration"):
        yield
        return
    _pure.append(request.node.name)
    yield
    _pure.clear()
