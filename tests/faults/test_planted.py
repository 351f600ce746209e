"""Fault runs on clusters find defects that are planted in the product; ``make faults-all`` plants
one for each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cluster_run import CLUSTER_KINDS, run_cluster_faults
from tests.faults.planted import PLANTS, SHOWN_TOO_EARLY, Plant, found_by
from tests.faults.restore_run import RESTORE_KINDS, run_restore_faults
from tests.faults.run import FaultRun
from tests.faults.seeds import default_seed
from tests.support import local_mariadb

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


def test_every_kind_of_cluster_fault_has_a_planted_defect() -> None:
    assert set(PLANTS) == {*CLUSTER_KINDS, *RESTORE_KINDS}


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
