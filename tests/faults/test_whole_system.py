"""kill -9 and pauses of every kind of process while the whole system works; ``make faults`` runs
more seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.run import KINDS, PUT_PAUSE_BRIEF_S, run_faults
from tests.faults.seeds import default_seed


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("whole-system")
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "index"]
)  # of index workers alone: tests/integration/indexes/test_index_worker_kills.py
def test_no_invariant_breaks_when_any_process_is_killed_or_paused(
    tmp_path: Path, kind: str
) -> None:
    result = run_faults(kind, default_seed(), tmp_path, PUT_PAUSE_BRIEF_S)
    assert len(result.witnessed) == 4, "the faults did not happen"
    assert result.passed, str(result)
