"""Several gateways while they, or their ZooKeeper, fail, in small;
``make faults KIND=gateways-kill`` and its like run longer and with more seeds.

Each run is a process of its own: aiokafka leaves the sockets of connections that failed to the
garbage collector, which the tests count as errors.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.seeds import seed_with
from tests.support import local_zookeeper

ROOT = Path(__file__).parents[2]
ODD, EVEN = seed_with(1), seed_with(0)
"""Two gateways over the store's own coordination, and three over ZooKeeper."""

RUNS = [
    ("gateways-kill", ODD),
    ("gateways-kill", EVEN),
    ("gateways-pause", ODD),
    ("gateways-pause", EVEN),
    ("gateways-stop", EVEN),
    ("gateways-zookeeper", ODD),
]


@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.xdist_group("zookeeper")
@pytest.mark.skipif(local_zookeeper.why_not() is not None, reason=str(local_zookeeper.why_not()))
@pytest.mark.parametrize(("kind", "seed"), RUNS)
def test_a_group_of_three_clients_misses_no_cell_under_faults_of_gateways(
    kind: str, seed: int
) -> None:
    command = [sys.executable, "-m", "tests.faults", "--kind", kind, "--seed", str(seed), "--brief"]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=220, check=False
    )
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["passed"], ended.stdout
    assert ended.returncode == 0
