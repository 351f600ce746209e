"""The day of a new user is as the guides say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.newcomer.day import live


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)  # two dozen commands and an instance, on a busy machine
def test_a_new_user_lives_a_whole_day(tmp_path: Path) -> None:
    live(tmp_path)
