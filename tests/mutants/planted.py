"""The lists of planted bugs: one TOML file for each area beside this module.

    area = "store/engines"

    [[mutant]]
    name = "sqlite-synchronous-normal"
    file = "store/engines/sqlite/files.py"
    old = 'PRAGMA synchronous=FULL"'        # found exactly once in the file
    new = 'PRAGMA synchronous=NORMAL"'
    tests = ["tests/durability/test_store.py::test_…"]
    why = "the promise that it breaks"
    accepted = "why no test can find it"    # only of a survivor that is accepted

An entry whose ``old`` is not found exactly once is an error: the code changed, so the entry must
follow or go.
"""

from __future__ import annotations

import ast
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LISTS: Final = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One planted bug. ``tests`` are pytest's ids; ``accepted`` is the reason why no test finds
    it."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str
    accepted: str | None = None

    def planted(self, root: Path) -> str:
        """The file's text with the bug in it."""
        return (root / self.file).read_text().replace(self.old, self.new)


def mutants(area: str | None = None, lists: Path = LISTS) -> list[Mutant]:
    """Every planted bug; of one area when it is given."""
    found = []
    for path in sorted(lists.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        found += [
            Mutant(content["area"], **{**each, "tests": tuple(each["tests"])})
            for each in content["mutant"]
        ]
    return [each for each in found if area in (None, each.area)]


def sampled(listed: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, drawn by chance; the same seed draws the same from the same list."""
    return random.Random(seed).sample(listed, min(count, len(listed)))


def mistakes(listed: list[Mutant], root: Path) -> Iterator[str]:
    """Entries that cannot be planted, or name tests that are not there."""
    names = [each.name for each in listed]
    for each in listed:
        if names.count(each.name) > 1:
            yield f"{each.name}: another entry has that name"
        if (
            not each.why.strip()
            or not each.tests
            or (each.accepted is not None and not each.accepted.strip())
        ):
            yield f"{each.name}: an entry needs a why and a test, and an accepted one its reason"
        path = root / each.file
        count = path.read_text().count(each.old) if path.is_file() else 0
        if count != 1 or each.old == each.new:
            yield (
                f"{each.name}: {each.file} holds the old text {count} times, not once, or the new"
                f" text is the same: {each.old!r}"
            )
        elif not _parses(each, root):
            yield f"{each.name}: with it {each.file} is no Python, and proves nothing"
        for test in each.tests:
            file, _, function = test.partition("::")
            name = function.partition("[")[0].rpartition("::")[2]
            if (
                not (root / file).is_file()
                or f"def {name or 'test_'}" not in (root / file).read_text()
            ):
                yield f"{each.name}: there is no test {test}"


def _parses(mutant: Mutant, root: Path) -> bool:
    if not mutant.file.endswith(".py"):
        return True
    try:
        ast.parse(mutant.planted(root))
    except SyntaxError:
        return False
    return True
