"""An import inside a function of the product says why it is not at the top of its module: an extra
that may be missing, or the time that a process takes to start. import-linter sees it like any
other, so it hides no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import grimp

from tests.support.source_files import PRODUCT, modules, place_of, statements


def late_imports(text: str) -> Iterator[tuple[int, bool]]:
    """The first line of each run of imports inside a function, and whether a comment on its lines
    or above it gives a reason."""
    lines = text.splitlines()
    for function in statements(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        end = 0
        nodes = [n for n in statements(function) if isinstance(n, ast.Import | ast.ImportFrom)]
        for node in sorted(nodes, key=lambda n: n.lineno):
            first, before, end = node.lineno, end, node.end_lineno or node.lineno
            if not before or any(lines[before : first - 1]):
                said = any("#" in line for line in lines[first - 1 : end])
                yield first, said or lines[first - 2].lstrip().startswith("#")


def test_every_late_import_has_a_reason() -> None:
    found = [
        (f"{place_of(path)}:{line}", said)
        for folder in PRODUCT
        for path in modules(folder)
        for line, said in late_imports(path.read_text())
    ]
    assert len(found) > 10
    assert [place for place, said in found if not said] == []


def test_a_late_import_without_a_reason_is_found() -> None:
    without = "def f():\n    import a\n    import b\n"
    assert list(late_imports(without)) == [(2, False)]
    assert list(late_imports("def f():\n    # slow\n    import a\n    import b\n")) == [(3, True)]
    assert list(late_imports("def f():\n    from a import (\n        b,\n    )  # slow\n")) == [
        (2, True)
    ]


def test_the_linter_sees_late_imports() -> None:
    graph = grimp.build_graph("cellfeed", cache_dir=None)
    assert "cellfeed.assembly.datastore" in graph.find_modules_directly_imported_by(
        "cellfeed.kinds.worker"
    )
