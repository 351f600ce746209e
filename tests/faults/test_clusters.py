"""Clusters of real MariaDB servers, all behind proxies, while servers and networks fail;
``make faults`` runs more seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cluster_run import CLUSTER_KINDS, LONG_KINDS, run_cluster_faults
from tests.faults.restore_run import RESTORE_TWICE, run_restore_faults
from tests.faults.seeds import default_seed
from tests.support import local_mariadb
from tests.support.small_disk import NoSmallDisk


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("mariadb-faults")
@pytest.mark.parametrize("kind", [kind for kind in CLUSTER_KINDS if kind not in LONG_KINDS])
def test_no_invariant_breaks_under_any_fault_of_a_cluster(kind: str) -> None:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    try:
        result = run_cluster_faults(kind, default_seed())
    except NoSmallDisk as reason:
        pytest.skip(str(reason))
    assert result.passed, str(result)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("mariadb-faults")
def test_two_restores_of_a_backup_never_join_into_one_history(tmp_path: Path) -> None:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    result = run_restore_faults(RESTORE_TWICE, default_seed(), tmp_path)
    assert result.passed, str(result)
