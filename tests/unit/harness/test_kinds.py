"""pyproject names every process kind where import-linter needs it: a kind that is missing from the
modules that ``cellfeed.instance`` may not import would be out of the rule, and no tool says so."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
NO_KINDS = {"__init__", "known", "registry"}


def kinds() -> set[str]:
    return {path.stem for path in (ROOT / "cellfeed" / "kinds").glob("*.py")} - NO_KINDS


def contracts() -> list[dict[str, Any]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    return found


def missing(kinds: set[str], contracts: list[dict[str, Any]]) -> Iterator[str]:
    """Kinds that one of the two contracts about kinds does not name, and names that are no kind."""
    [floors] = [each for each in contracts if each.get("containers") == ["cellfeed.kinds"]]
    [forbidden] = [
        each for each in contracts if each.get("source_modules") == ["cellfeed.instance"]
    ]
    named = {
        "floors": {name for layer in floors["layers"] for name in layer.split(" | ")} - NO_KINDS,
        "forbidden_modules": {
            name.removeprefix("cellfeed.kinds.") for name in forbidden["forbidden_modules"]
        },
    }
    for place, there in named.items():
        yield from (f"{place} lacks {name}" for name in sorted(kinds - there))
        yield from (f"{place} has {name}, which is no kind" for name in sorted(there - kinds))


def test_every_kind_of_process_is_in_both_import_contracts() -> None:
    assert list(missing(kinds(), contracts())) == []


def test_a_kind_that_a_contract_lacks_is_found() -> None:
    assert list(missing({*kinds(), "toy"}, contracts())) == [
        "floors lacks toy",
        "forbidden_modules lacks toy",
    ]
