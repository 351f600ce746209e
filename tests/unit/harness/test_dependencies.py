"""The product declares just the packages that it imports."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from cellfeed.extras import EXTRAS, missing_extra
from tests.support.source_files import PRODUCT as FOLDERS
from tests.support.source_files import ROOT, modules, statements

TESTING: frozenset[str] = frozenset({"pytest"})
"""Needed by ``cellfeed.testing`` alone, and declared as that extra."""

CLIENT = "from cellfeed import AsyncClient, Cell, Client, connect"
CLIENT_MAX = 5
"""Packages that a service installs beside cellfeed, at most."""

OF_ONE_SYSTEM = {"fcntl", "grp", "pwd", "resource", "termios", "syslog", "winreg", "msvcrt"}
"""Modules of Python's that some system lacks; the client runs on Linux, macOS and Windows."""

IMPORTED_BY_OTHERS: frozenset[str] = frozenset({"pytz"})
"""DuckDB imports it for a timestamp with a time zone, and does not declare it."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;~! ]", name)[0]).lower()


def _imported() -> set[str]:
    """The distributions that the product's modules import, also inside functions."""
    names: set[str] = set()
    for folder in FOLDERS:
        for path in modules(folder):
            for node in statements(ast.parse(path.read_text())):
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


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _extras() -> dict[str, set[str]]:
    return {
        extra: {_normal(each) for each in wanted}
        for extra, wanted in _project()["optional-dependencies"].items()
        if extra not in ("dev", "all")
    }


def test_every_declared_dependency_is_imported_and_every_imported_one_declared() -> None:
    declared = {_normal(each) for each in _project()["dependencies"]}.union(*_extras().values())
    assert declared == (_imported() - {"cellfeed", *FOLDERS}) | IMPORTED_BY_OTHERS


def test_each_extra_is_known_by_the_packages_that_it_brings() -> None:
    ours = packages_distributions()
    known = {
        extra: {_normal(distribution) for name in names for distribution in ours[name]}
        for extra, names in EXTRAS.items()
    }
    assert known | {"testing": TESTING} == _extras()
    assert sum(map(len, EXTRAS.values())) == len(frozenset().union(*EXTRAS.values()))
    [together] = _project()["optional-dependencies"]["all"]
    assert set(together.removeprefix("cellfeed[").removesuffix("]").split(",")) == set(EXTRAS)


def _loaded_by_the_client() -> dict[str, str]:
    """Modules with their files."""
    report = (
        "files = {name: getattr(sys.modules[name], '__file__', None) or ''"
        " for name in {*sys.modules} - before}\nprint(json.dumps(files))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\nbefore = {{*sys.modules}}\n{CLIENT}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded: dict[str, str] = json.loads(done.stdout)
    return loaded


@pytest.mark.integration
def test_the_client_imports_only_dependencies_without_an_extra() -> None:
    declared = {_normal(each) for each in _project()["dependencies"]}
    assert len(declared) <= CLIENT_MAX
    loaded = {name.partition(".")[0] for name in _loaded_by_the_client()}
    assert loaded.isdisjoint(frozenset().union(*EXTRAS.values()))
    ours = packages_distributions()
    needed = {
        _normal(distribution)
        for name in loaded - {"cellfeed"}
        for distribution in ours.get(name, ())
    }
    assert declared <= needed


@pytest.mark.integration
def test_the_client_uses_no_module_that_some_system_lacks() -> None:
    ours = {
        name: file for name, file in _loaded_by_the_client().items() if name.startswith("cellfeed")
    }
    assert len(ours) > 20
    for name, file in ours.items():
        imported = {
            each
            for node in ast.walk(ast.parse(Path(file).read_text()))
            for each in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert imported.isdisjoint(OF_ONE_SYSTEM), name


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_package_is_reported_with_its_extra(extra: str) -> None:
    for package in EXTRAS[extra]:
        error = ModuleNotFoundError(f"No module named '{package}.part'", name=f"{package}.part")
        assert f"pip install 'cellfeed[{extra}]'" in (missing_extra(error) or "")
    assert missing_extra(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
