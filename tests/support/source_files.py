"""The project's own Python files, for tests that look at code: hundreds of thousands of nodes, so
each look is as short as it can be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("store", "bridge", "consumers", "schemas", "cellfeed")

_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")

_TEXT_OR_COMMENT: Final = re.compile(
    r'("""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\')'
    r'|("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
    r"|(#[^\n]*)",
    re.DOTALL,
)


def modules(folder: str) -> list[Path]:
    """Those of a folder of the repository, each once: not by the links of the import names."""
    return [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
    ]


def place_of(path: Path) -> str:
    """The module's path in the repository."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """As :func:`ast.walk`, in another order, three times as fast. Marks like ``ast.Load``, which
    have no place in the text, are left out."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                waiting.append(value)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement in the tree, handler and case, without the expressions in them: enough to
    find imports, functions and classes."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in _BLOCKS:
            waiting += getattr(node, block, None) or ()


def comments(text: str) -> Iterator[tuple[int, int, str]]:
    """The line, the column and the text of each comment, as Python's tokenizer finds them."""
    line, counted = 1, 0
    for found in _TEXT_OR_COMMENT.finditer(text):
        if found[3] is None:
            continue
        line, counted = line + text.count("\n", counted, found.start()), found.start()
        yield line, found.start() - text.rfind("\n", 0, found.start()) - 1, found[3]
