"""Three hosts and clients on a fourth, while one of the hosts fails: one kind each day, in small;
``python -m tests.faults --kind hosts-power`` and its like run longer and with more seeds.

The run is a process of its own: its threads enter network namespaces.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.hosts_run import HOST_KINDS
from tests.faults.seeds import default_seed
from tests.support import spread_instance

ROOT = Path(__file__).parents[2]


@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("hosts")
def test_a_host_that_fails_costs_no_acknowledged_cell() -> None:
    if reason := spread_instance.why_not():
        pytest.skip(reason)
    kind = HOST_KINDS[default_seed() % len(HOST_KINDS)]
    command = [sys.executable, "-m", "tests.faults", "--kind", kind, "--brief"]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["passed"], ended.stdout
    assert ended.returncode == 0
