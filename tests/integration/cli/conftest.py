"""The fixtures that the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.environments import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as a release has it."""
    return build_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"))
