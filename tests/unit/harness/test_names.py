"""Names in the product have the field's words: one word, one meaning.

``hold`` was a pause, an offset, a parked cell, a lock and an owner; ``tell`` was a report, a log
line, a wake-up and a description. So no name of the product has either.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.source_files import PRODUCT, modules, nodes, place_of

INSTEAD = {
    r"(foot)?hold(s|ing|er|ers)?|(with)?held": "own, lock, pause, keep, park, claim",
    r"tell(s|ing|er)?|(un)?told": "report, log, answer, describe, notify",
    r"misfits?": "mismatch, rejected",
}
OF_OTHERS = {("store/backups/places/s3_files.py", "tell")}
"""A method of Python's files, which others call."""


def names(tree: ast.AST) -> Iterator[str]:
    """Every name that the module gives or uses."""
    for node in nodes(tree):
        fields = vars(node)
        for field in ("id", "attr", "name", "arg", "asname"):
            if isinstance(name := fields.get(field), str):
                yield name
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names


def words(name: str) -> list[str]:
    """``HTTPTold``, ``_told_s`` and ``told-s`` have the words *told*."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", " ", name).lower().split()


@cache
def faults(name: str) -> tuple[str, ...]:
    return tuple(
        f"{name}: {word!r} has several meanings; say which ({better})"
        for word in words(name)
        for pattern, better in INSTEAD.items()
        if re.fullmatch(pattern, word)
    )


@pytest.mark.parametrize("folder", PRODUCT)
def test_names_have_words_of_one_meaning(folder: str) -> None:
    paths = modules(folder)
    assert paths
    found = {
        (place_of(path), name)
        for path in paths
        for name in (path.stem, path.parent.name, *names(ast.parse(path.read_text())))
    }
    assert [
        f"{path}: {fault}" for path, name in sorted(found - OF_OTHERS) for fault in faults(name)
    ] == []


@pytest.mark.parametrize(
    "code",
    [
        "told = 1",
        "def _tell_heads(): ...",
        "class HeldSlot: ...",
        "def f(*, footholds): ...",
        "import a as holder",
        "LOGS_TOLD_MAX = 1",
        "class Misfit: ...",
    ],
)
def test_a_name_of_several_meanings_is_found(code: str) -> None:
    assert [fault for name in names(ast.parse(code)) for fault in faults(name)] != []


def test_words_with_a_forbidden_beginning_or_end_are_permitted() -> None:
    found = [fault for name in ("threshold", "household_s", "satellite") for fault in faults(name)]
    assert found == []
