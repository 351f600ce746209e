"""Puts that are waited for while processes are killed and paused, in small; ``make faults`` does it
for 25,000 puts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.seeds import default_seed
from tests.faults.wait_run import run_wait_faults
from tests.faults.waited_puts import BRIEF
from tests.support import local_kafka, local_mariadb


@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("kafka")
@pytest.mark.parametrize("kind", ["waits"])
def test_no_wait_answers_before_its_effect_under_kills(kind: str, tmp_path: Path) -> None:
    if reason := local_kafka.why_not() or local_mariadb.why_not():
        pytest.skip(reason)
    result = run_wait_faults(kind, default_seed(), tmp_path, BRIEF)
    assert result.passed, str(result)
