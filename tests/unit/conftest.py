"""The pure tests of this folder start no process; those marked ``integration`` may."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _starts_no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-fast` runs every test without a mark, and is to end within a minute."""
    if request.node.get_closest_marker("integration"):
        return
    name = request.node.name

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"{name} starts a process: mark it as integration")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
