"""Order by row key with processes that are killed while cells are parked, held and released, on
either coordination."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
NAMESPACE = UUID("c0e3a2aa-6cf2-5b53-8f2e-4d7e7a4b9b10")
GROUP = "ordered"
SHARDS, ROWS, CELLS = 4, 16, 30
pytestmark = [pytest.mark.integration, pytest.mark.faults]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as opened:
        yield opened


@pytest.fixture
def workers(tmp_path: Path, coordination: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Two, by name."""
    settings = {"path": str(tmp_path / "runs"), "coordination": coordination}
    processes = {}
    for name in "ab":
        arguments = [
            str(tmp_path / "store"),
            name,
            "1.0",
            "tests.support.ordered_program:ordered",
            json.dumps(settings),
        ]
        with (tmp_path / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.support.trigger_process", *arguments]
            processes[name] = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log
            )
    yield processes
    for process in processes.values():
        process.kill()
        process.wait(30)


def put(store: Datastore, numbers: range) -> None:
    """Every seventh cell of a row is bad, not the same ones in every row."""
    for number in numbers:
        store.put_cells(
            [
                (row(each), "BASE", number, {"bad": True} if (number + each) % 7 == 3 else {})
                for each in range(ROWS)
            ]
        )


def row(number: int) -> UUID:
    return uuid5(NAMESPACE, str(number))


def runs(tmp_path: Path) -> list[tuple[str, int, int]]:
    path = tmp_path / "runs"
    lines = map(str.split, path.read_text().splitlines()) if path.exists() else []
    return [(key, int(ref_key), int(pid)) for key, ref_key, pid in lines]


def caught_up(store: Datastore, coordinator: Coordinator) -> bool:
    offsets = coordinator.fetch_offsets(GROUP)
    return all(
        head.watermark == (offsets["trips", shard].offset if ("trips", shard) in offsets else 0)
        for shard, head in store.heads().items()
    )


def test_each_row_key_keeps_its_order_over_parking_kills_and_retries(
    store: Datastore,
    coordinator: Coordinator,
    workers: dict[str, subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    parked = ParkedCells(store.state)
    wait_until(
        lambda: set(coordinator.owners(GROUP, "trips").values()) == {"a", "b"}, "both have shards"
    )
    put(store, range(CELLS // 2))
    wait_until(lambda: caught_up(store, coordinator), "all cells are run, parked or held")
    assert (
        sum(cell.is_behind for cell in parked.all(GROUP))
        > sum(not cell.is_behind for cell in parked.all(GROUP))
        >= ROWS
    )
    assert {pid for _, _, pid in runs(tmp_path)} == {process.pid for process in workers.values()}
    put(store, range(CELLS // 2, CELLS))
    (tmp_path / "antidote").touch()
    before = len(runs(tmp_path))
    wait_until(lambda: len(runs(tmp_path)) > before + 20, "parked cells are released")
    workers["a"].kill()
    workers["a"].wait(30)
    wait_until(
        lambda: caught_up(store, coordinator) and parked.count(GROUP) == 0, "all cells have run", 60
    )
    for each in range(ROWS):
        of_row = [number for key, number, _ in runs(tmp_path) if key == str(row(each))]
        assert list(dict.fromkeys(of_row)) == list(range(CELLS)), f"row {each}: {of_row}"
        # The cells that ran again after the kill did so in order as well, from some place on.
        assert all(later <= earlier + 1 for earlier, later in pairwise(of_row)), (
            f"row {each}: {of_row}"
        )
