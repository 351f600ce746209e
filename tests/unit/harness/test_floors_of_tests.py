"""Tests share helpers through ``tests/support``: no test module imports another folder's tests."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.source_files import statements

TESTS = Path(__file__).parents[2]


def borrowed(path: Path, text: str) -> list[str]:
    """The test modules of other folders that ``text``, the module at ``path``, imports."""
    home = ".".join(("tests", *path.relative_to(TESTS).parent.parts))
    names: list[str] = []
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [
        name
        for name in names
        if name.startswith("tests.")
        and name.rpartition(".")[2].startswith("test_")
        and (TESTS.parent / f"{name.replace('.', '/')}.py").is_file()
        and name.rpartition(".")[0] != home
    ]


def test_no_module_imports_a_test_module_of_another_folder() -> None:
    found = {
        str(path.relative_to(TESTS)): names
        for path in sorted(TESTS.rglob("*.py"))
        if (names := borrowed(path, path.read_text()))
    }
    assert found == {}


def test_a_borrowed_test_module_is_found() -> None:
    text = "from tests.unit.harness.test_floors_of_tests import borrowed\n"
    assert borrowed(TESTS / "races" / "x.py", text) == ["tests.unit.harness.test_floors_of_tests"]
    assert borrowed(TESTS / "unit" / "harness" / "x.py", text) == []
    text = "from tests.unit.harness import test_floors_of_tests\n"
    assert borrowed(TESTS / "support" / "x.py", text) == ["tests.unit.harness.test_floors_of_tests"]
