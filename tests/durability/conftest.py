"""What the tests of power cuts share: a program that is recorded, and every cut of its run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.durability.disk import Cut, power_cuts, torn_cuts
from tests.durability.recorded import Step, record, why_not
from tests.faults.seeds import default_seed

Cuts = Callable[[str], Iterator[Cut]]

_IN_MEMORY: Final = Path("/dev/shm")
"""Where cuts are written and opened, if it is there: a sync costs nothing there, and tests open
thousands of stores. The programs are recorded on a disk."""


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for cuts."""
    folder = Path(
        tempfile.mkdtemp("", "cellfeed-cuts-", _IN_MEMORY if _IN_MEMORY.is_dir() else tmp_path)
    )
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], tuple[list[Step], Path]]:
    """Runs a program of :mod:`tests.durability.programs`: its steps, and its folder."""
    if reason := why_not():
        pytest.skip(reason)

    def run(kind: str) -> tuple[list[Step], Path]:
        folder = tmp_path / "recorded"
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
