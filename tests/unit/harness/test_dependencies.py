"""What the product declares that it needs is what it imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("store", "bridge", "consumers", "schemas", "cellfeed")
TESTING: frozenset[str] = frozenset({"pytest"})
"""Needed by ``cellfeed.testing`` alone, and declared as that extra."""

S3: frozenset[str] = frozenset({"boto3", "botocore"})
"""Needed for backups in object stores alone, and declared as that extra."""


IMPORTED_BY_OTHERS: frozenset[str] = frozenset({"pytz"})
"""DuckDB imports it for a timestamp with a time zone, and does not declare it."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;~! ]", name)[0]).lower()


def _imported() -> set[str]:
    """The distributions that the product's modules import, also inside functions."""
    names: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names.add(node.module.partition(".")[0])
    ours = packages_distributions()
    return {
        _normal(distribution)
        for name in names - sys.stdlib_module_names
        for distribution in ours.get(name, [name])
    }


def test_every_declared_dependency_is_imported_and_every_imported_one_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {_normal(each) for each in project["dependencies"]}
    ours = _imported() - TESTING - S3 - {"cellfeed", *FOLDERS}
    assert declared == ours | IMPORTED_BY_OTHERS
    assert {_normal(each) for each in project["optional-dependencies"]["testing"]} == TESTING
    assert {_normal(each) for each in project["optional-dependencies"]["s3"]} == S3
