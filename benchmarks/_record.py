"""A recorded run of a benchmark: one JSON file, with everything that a reader needs to judge its
figures.

``docs/plots/results/`` has the runs that the page of figures shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import Figure, benchmark_names, run_benchmark


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one benchmark.

    ``load_before`` and ``load_after`` are load averages of the last minute, ``commit`` is the
    program's, with a ``+`` where files were changed since.
    """

    benchmark: str
    about: str
    at: datetime
    seconds: float
    commit: str
    cores: int
    load_before: float
    load_after: float
    figures: tuple[Figure, ...]

    def as_json(self) -> dict[str, object]:
        """The content of its file."""
        return {
            "benchmark": self.benchmark,
            "about": self.about,
            "at": self.at.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 1),
            "commit": self.commit,
            "cores": self.cores,
            "load_before": round(self.load_before, 1),
            "load_after": round(self.load_after, 1),
            "figures": [figure.as_json() for figure in self.figures],
        }


class Recorder:
    """Runs a benchmark and writes its file into a folder once all its figures are measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, name: str) -> Iterator[Figure]:
        """The figures, as they are measured. A run that fails or is cut off leaves no file."""
        at, began, load_before = datetime.now(UTC), time.monotonic(), os.getloadavg()[0]
        figures = []
        for figure in run_benchmark(name):
            figures.append(figure)
            yield figure
        run = Run(
            benchmark=name,
            about=benchmark_names()[name],
            at=at,
            seconds=time.monotonic() - began,
            commit=_commit(),
            cores=os.cpu_count() or 1,
            load_before=load_before,
            load_after=os.getloadavg()[0],
            figures=tuple(figures),
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(run.as_json(), indent=2, ensure_ascii=False) + "\n"
        staged = self._folder / f".{name}.json"
        staged.write_text(text)
        staged.replace(self._folder / f"{name}.json")


def read_run(path: Path) -> Run:
    """A recorded run. Raises ValueError for a file that is none."""
    try:
        given = json.loads(path.read_text())
        return Run(
            benchmark=given["benchmark"],
            about=given["about"],
            at=datetime.fromisoformat(given["at"]),
            seconds=given["seconds"],
            commit=given["commit"],
            cores=given["cores"],
            load_before=given["load_before"],
            load_after=given["load_after"],
            figures=tuple(Figure.from_json(each) for each in given["figures"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no recorded run: {error!r}") from error


def _commit() -> str:
    """The program's commit; ``unknown`` outside a repository."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
