"""Fault runs find defects that are planted in the product; ``make faults-all`` plants one for each
kind, the suite some each day."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.__main__ import ALL_KINDS
from tests.faults.cluster_run import run_cluster_faults
from tests.faults.embedded_run import EMBEDDED_KINDS
from tests.faults.erase_run import ERASE_KINDS
from tests.faults.export_run import EXPORT_KINDS, STORE_CUT
from tests.faults.fork_run import FORK_KINDS
from tests.faults.gateway_run import GATEWAY_KINDS
from tests.faults.planted import PLANTS, SHOWN_TOO_EARLY, found_by
from tests.faults.planting import ROOT, Plant
from tests.faults.restore_run import RESTORE_KINDS, run_restore_faults
from tests.faults.run import KINDS, FaultRun
from tests.faults.seeds import default_seed
from tests.faults.trigger_run import TRIGGER_KINDS
from tests.faults.wait_run import WAIT_KINDS
from tests.support import local_kafka, local_mariadb, local_zookeeper

ALWAYS = ("master-restarts-then-dies", "minions-join", "lost-tail")
SHORT = (
    "master",
    "minion",
    "both-minions",
    "promote",
    "replication",
    "commit-reset",
    "read-only",
    "buffered",
    "lost-tail-semi-sync",
    "backup-behind",
    "foreign-node",
    "restore-twice",
)
"""One of these each day."""


def _no_waits() -> str | None:
    return local_kafka.why_not() or local_mariadb.why_not()


NEEDS = {
    **dict.fromkeys((*TRIGGER_KINDS, *GATEWAY_KINDS), local_zookeeper.why_not),
    **dict.fromkeys(EXPORT_KINDS, local_kafka.why_not),
    STORE_CUT: local_mariadb.why_not,
    **dict.fromkeys(WAIT_KINDS, _no_waits),
}
FAMILIES: tuple[Sequence[str], ...] = (
    KINDS,
    (*FORK_KINDS, *EMBEDDED_KINDS, *ERASE_KINDS),
    TRIGGER_KINDS,
    GATEWAY_KINDS,
    EXPORT_KINDS,
    WAIT_KINDS,
)
"""One of each of these each day."""


def test_every_kind_of_fault_has_a_planted_defect() -> None:
    assert set(PLANTS) == set(ALL_KINDS)


def test_every_kind_of_fault_is_in_the_table_of_the_readme() -> None:
    table = (ROOT / "tests" / "README.md").read_text()
    assert [kind for kind in ALL_KINDS if f"`{kind}`" not in table] == []


def of_today() -> list[tuple[str, Plant]]:
    kinds = [*ALWAYS, SHORT[default_seed() % len(SHORT)]]
    return [*((kind, PLANTS[kind]) for kind in kinds), ("lost-tail", SHOWN_TOO_EARLY)]


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("mariadb-faults")
@pytest.mark.parametrize(
    ("kind", "plant"),
    [pytest.param(kind, plant, id=f"{kind}: {plant.what}") for kind, plant in of_today()],
)
def test_a_planted_defect_is_found(kind: str, plant: Plant, tmp_path: Path) -> None:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)

    def run() -> FaultRun:
        if kind in RESTORE_KINDS:
            return run_restore_faults(kind, default_seed(), tmp_path)
        return run_cluster_faults(kind, default_seed())

    assert found_by(run, plant) is None


@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [each[default_seed() % len(each)] for each in FAMILIES])
def test_a_defect_that_is_planted_in_processes_is_found(kind: str) -> None:
    if (why_not := NEEDS.get(kind)) and (reason := why_not()):
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.faults", "--kind", kind, "--planted", "--brief"]
    ended = subprocess.run(
        [*command, "--seed", str(default_seed())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.stdout, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["found"], told["why_not"]
