"""Results of planted bugs: one JSON object a line in ``build/mutants.jsonl``, the newest last.

    {"name", "area", "verdict", "by", "seconds", "at", "commit", "changed"}

``at`` is the moment in UTC, ``commit`` the tree's commit, and ``changed`` says whether files of
the tree differ from that commit.
"""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.mutants.planted import Mutant
from tests.mutants.runs import Outcome, Verdict

RESULTS: Final = Path("build/mutants.jsonl")


class Results:
    """Appends to the file of results, and counts this run's."""

    def __init__(self, root: Path, path: Path) -> None:
        self._path = path
        self._commit = _git(root, "rev-parse", "HEAD")
        self._changed = bool(_git(root, "status", "--porcelain"))
        self.outcomes: dict[Mutant, Outcome] = {}

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        """Writes one result down at once: a run that is broken off keeps those before it."""
        self.outcomes[mutant] = outcome
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = {
            "name": mutant.name,
            "area": mutant.area,
            "verdict": str(outcome.verdict),
            "by": outcome.by,
            "seconds": round(outcome.seconds, 1),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": self._commit,
            "changed": self._changed,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def rate(self, area: str | None = None) -> str:
        """``killed 9 of 10 (90 %)``; of one area when it is given."""
        verdicts = [
            outcome.verdict for each, outcome in self.outcomes.items() if area in (None, each.area)
        ]
        killed = verdicts.count(Verdict.KILLED)
        return f"killed {killed} of {len(verdicts)} ({100 * killed // max(len(verdicts), 1)} %)"


def _git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()
