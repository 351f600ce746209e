"""A trigger group and its ZooKeeper while both fail, in small; ``make faults`` bills all trips and
runs more seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.seeds import default_seed
from tests.faults.trigger_faults import BRIEF, HURT_ZOOKEEPER
from tests.faults.trigger_run import TRIGGER_KINDS, run_trigger_faults
from tests.support.local_zookeeper import ZooKeeper


@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.xdist_group("zookeeper")
@pytest.mark.parametrize("kind", TRIGGER_KINDS)
def test_each_trip_is_charged_once_under_faults_of_triggers(
    tmp_path: Path, zookeeper_server: ZooKeeper, kind: str
) -> None:
    result = run_trigger_faults(
        kind, default_seed(), tmp_path, BRIEF, None if kind in HURT_ZOOKEEPER else zookeeper_server
    )
    assert result.passed, str(result)
