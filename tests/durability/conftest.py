"""What the tests of power cuts share: a program that is recorded, and every cut of its run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.durability.disk import Cut, power_cuts
from tests.durability.recorded import record, why_not

Cuts = Callable[[str], Iterator[Cut]]


@pytest.fixture
def cuts(tmp_path: Path, record_property: Callable[[str, object], None]) -> Cuts:
    """Runs a program of :mod:`tests.durability.programs`; every power cut of its run, each gone
    when the next one comes."""
    if reason := why_not():
        pytest.skip(reason)

    def run(kind: str) -> Iterator[Cut]:
        folder, scratch = tmp_path / "recorded", tmp_path / "cuts"
        folder.mkdir()
        scratch.mkdir()
        record_property("seed", 1)
        steps = record("tests.durability.programs", [kind, str(folder)], folder, tmp_path / "trace")
        assert len(steps) > 20, "the program was recorded"
        for cut in power_cuts(steps, folder, scratch, seed=1):
            yield cut
            shutil.rmtree(cut.place)

    return run
