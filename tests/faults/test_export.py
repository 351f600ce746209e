"""An export while its processes and the network fail, in small; ``make faults`` does it more often
and for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.export_run import BRIEF, EXPORT_KINDS, run_export_faults
from tests.faults.seeds import default_seed
from tests.support import local_kafka, local_zookeeper


@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.xdist_group("kafka")
@pytest.mark.parametrize(
    "kind",
    [kind for kind in EXPORT_KINDS if kind in ("export-kill", "export-zombie", "export-network")],
)
def test_the_partition_equals_the_log_under_faults_of_exporters_and_network(
    tmp_path: Path, kind: str
) -> None:
    if reason := local_kafka.why_not() or local_zookeeper.why_not():
        pytest.skip(reason)
    result = run_export_faults(kind, default_seed(), tmp_path, BRIEF)
    assert result.passed, str(result)
