"""Flipped bits of an embedded store: every answer is right or names the damage, and a check finds
it. Planted defects are found by the same run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.mysql.mend import NodeMender
from cellfeed.store.engines.sqlite import checked_log, integrity, key_reads, log
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from tests.faults import bit_flips
from tests.faults.bit_flips import BIT_FLIP_KINDS, FLIPS_BRIEF, run_bit_flips
from tests.faults.node_flips import ROUNDS_BRIEF, run_node_flips
from tests.faults.run import FaultRun
from tests.support import local_mariadb

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

KIND = BIT_FLIP_KINDS[0]


def violated(result: FaultRun) -> set[str]:
    return {name for name, found in result.violations.items() if found}


@pytest.mark.parametrize("seed", [1, 2])
def test_every_answer_is_right_or_names_the_damage_and_a_check_finds_it(
    tmp_path: Path, seed: int
) -> None:
    result = run_bit_flips(KIND, seed, tmp_path, FLIPS_BRIEF)
    assert len(result.witnessed) > FLIPS_BRIEF / 4, "the flips hit nothing"
    assert violated(result) == set()


def in_a_body(path: Path, chance: random.Random) -> str:
    """A bit of a row, where a random one hits it seldom."""
    data = bytearray(path.read_bytes())
    places = [at for at in range(len(data) - 4) if data[at : at + 5] == b"\x02\x28\xb5\x2f\xfd"]
    at = chance.choice(places) - chance.randrange(1, 12)
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"a bit before the body at {at}"


def unchecked(shard: int, rows: list[tuple[Any, ...]]) -> list[StoredCell]:
    return [StoredCell._make(row[:6]) for row in rows]


def test_without_checksums_the_run_finds_wrong_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bit_flips, "_flipped", in_a_body)
    assert violated(run_bit_flips(KIND, 1, tmp_path / "sound", FLIPS_BRIEF)) == set()
    for reads in (key_reads, log):
        monkeypatch.setattr(reads, "stored_cells", unchecked)
    monkeypatch.setattr(key_reads, "stored_cell", lambda shard, row: StoredCell._make(row[:6]))
    assert violated(run_bit_flips(KIND, 1, tmp_path / "planted", FLIPS_BRIEF)) & {
        "I1",
        "I7",
        "errors",
    }


def test_a_check_that_finds_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bit_flips, "_flipped", in_a_body)
    monkeypatch.setattr(checked_log, "check_log", lambda *_: None)
    monkeypatch.setattr(integrity, "_integrity", lambda *_: True)
    assert "check" in violated(run_bit_flips(KIND, 1, tmp_path, FLIPS_BRIEF))


def test_a_repair_that_reports_more_than_it_did_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bit_flips, "_flipped", in_a_body)
    monkeypatch.setattr("cellfeed.store.engines.sqlite.mend.SqliteMender.mend", lambda *_: None)
    assert "repair" in violated(run_bit_flips(KIND, 1, tmp_path, FLIPS_BRIEF))


def test_a_body_swapped_on_disk_is_found_by_a_read_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = SqliteEngine.get
    monkeypatch.setattr(
        SqliteEngine,
        "get",
        lambda self, triples, *given: [None for _ in real(self, triples, *given)],
    )
    assert "I1" in violated(run_bit_flips(KIND, 1, tmp_path, 1))


@pytest.fixture
def mariadb() -> None:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)


on_nodes = pytest.mark.xdist_group("mariadb-faults")


@on_nodes
@pytest.mark.usefixtures("mariadb")
def test_a_nodes_flipped_bits_are_read_from_another_and_mended() -> None:
    result = run_node_flips(KIND, 1, ROUNDS_BRIEF)
    assert "mended from another node" in result.witnessed
    assert violated(result) == set()


@on_nodes
@pytest.mark.usefixtures("mariadb")
def test_a_check_of_a_node_that_finds_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Findings, "add", lambda *_: None)
    assert "check" in violated(run_node_flips(KIND, 1, ROUNDS_BRIEF))


@on_nodes
@pytest.mark.usefixtures("mariadb")
def test_a_node_that_is_not_mended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeMender, "mend", lambda *_: None)
    assert "repair" in violated(run_node_flips(KIND, 1, ROUNDS_BRIEF))
