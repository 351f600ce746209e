"""Fixtures that the tests of power cuts share: a program that is recorded, and every cut of its
run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.durability.disk import Cut, power_cuts, torn_cuts
from tests.durability.recorded import Step, record, why_not
from tests.faults.seeds import default_seed
from tests.in_memory import DISK

Cuts = Callable[[str], Iterator[Cut]]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A folder for cuts."""
    folder = tmp_path / "cuts"
    folder.mkdir()
    return folder


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is on a disk."""
    with tempfile.TemporaryDirectory(prefix="cellfeed-recorded-", dir=DISK) as folder:
        yield Path(folder)


@pytest.fixture
def recorded(tmp_path: Path, on_disk: Path) -> Callable[[str], tuple[list[Step], Path]]:
    """Runs a program of :mod:`tests.durability.programs`: its steps, and its folder."""
    if reason := why_not():
        pytest.skip(reason)

    def run(kind: str) -> tuple[list[Step], Path]:
        folder = on_disk / "recorded"
        folder.mkdir()
        steps = record("tests.durability.programs", [kind, str(folder)], folder, tmp_path / "trace")
        assert len(steps) > 20, "the program was recorded"
        return steps, folder

    return run


@pytest.fixture
def cuts(
    recorded: Callable[[str], tuple[list[Step], Path]],
    scratch: Path,
    record_property: Callable[[str, object], None],
) -> Cuts:
    """Every power cut of a program's run, each gone when the next one comes."""

    def run(kind: str) -> Iterator[Cut]:
        seed = default_seed()
        record_property("seed", seed)
        for cut in power_cuts(*recorded(kind), scratch, seed):
            yield cut
            shutil.rmtree(cut.place)

    return run


@pytest.fixture
def tears(recorded: Callable[[str], tuple[list[Step], Path]], scratch: Path) -> Cuts:
    """Every tear of every write of a program's run, each gone when the next one comes."""

    def run(kind: str) -> Iterator[Cut]:
        for cut in torn_cuts(*recorded(kind), scratch):
            yield cut
            shutil.rmtree(cut.place)

    return run
