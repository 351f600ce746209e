"""The files of an embedded store while they cannot be opened, written or found;
``make faults KIND=files-replaced`` and its like run more seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.embedded_run import EMBEDDED_KINDS, FAULTS_IN_A_RUN, run_embedded_faults
from tests.faults.erase_run import ERASE_EVERYWHERE, run_erase_faults
from tests.support.personal_data import PLACES
from tests.support.small_disk import NoSmallDisk


@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("kind", EMBEDDED_KINDS)
def test_every_put_has_the_outcome_that_its_caller_got(tmp_path: Path, kind: str) -> None:
    try:
        result = run_embedded_faults(kind, 1, tmp_path)
    except NoSmallDisk as reason:
        pytest.skip(str(reason))
    assert len(result.witnessed) == FAULTS_IN_A_RUN, "the faults did not happen"
    assert result.operations_inside > 0, "nothing ran meanwhile"
    assert {name: found for name, found in result.violations.items() if found} == {}


@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.slow
def test_an_erasure_that_is_killed_anywhere_leaves_nothing_in_any_place(tmp_path: Path) -> None:
    result = run_erase_faults(ERASE_EVERYWHERE, 1, tmp_path)
    assert len(result.witnessed) == len(PLACES), "the faults did not happen"
    assert result.operations_inside > 0, "nothing ran meanwhile"
    assert {name: found for name, found in result.violations.items() if found} == {}
