"""Names in the product have the field's words: one word, one meaning.

``hold`` was a pause, an offset, a parked cell, a lock and an owner; ``tell`` was a report, a log
line, a wake-up and a description. So no name of the product has either.

A test's name needs no body: it names the actor, the action and the condition.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.source_files import PRODUCT, modules, nodes, place_of, statements

INSTEAD = {
    r"(foot)?hold(s|ing|er|ers)?|(with)?held": "own, lock, pause, keep, park, claim",
    r"tell(s|ing|er)?|(un)?told": "report, log, answer, describe, notify",
    r"misfits?": "mismatch, rejected",
}
OF_OTHERS = {("store/backups/places/s3_files.py", "tell")}
"""A method of Python's files, which others call."""

IN_TESTS = re.compile(
    r"(^|_)((with)?h[eo]ld(s|ing|ers?)?|tell(s|ing)?|told|what(ever)?|whoever|whom|whichever|anew"
    r"|seldom(er)?|milliards?|nothing_else|nobody_else|all_the_same|by_then|go(es|ing|ne)?_on"
    r"|went_on|(of|by|to|for|from|with|than|and|or|is|at)_who)(_|$)"
    r"|^([a-z]\d+_)?(it|its|they|them|their|who|not|nor|and|but|so|this|these|those|that|such"
    r"|one_(that|who))_"
)
"""Words in a test's name that leave the actor or the thing open, or are not the field's."""


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
        (place, name)
        for path in paths
        for place in [place_of(path)]
        for name in {path.stem, path.parent.name, *names(ast.parse(path.read_text()))}
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


def test_names_of_tests_have_an_actor_and_a_thing() -> None:
    found = {
        (place_of(path), node.name.removeprefix("test_"))
        for path in modules("tests")
        for node in statements(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }
    assert len(found) > 3_000
    assert [f"{path}: {name}" for path, name in sorted(found) if IN_TESTS.search(name)] == []


@pytest.mark.parametrize(
    "name",
    [
        "what_was_erased_is_gone",
        "the_client_goes_on",
        "it_comes_back",
        "e4_nor_does_it_fall",
        "a_caller_is_told",
        "a_copy_is_made_anew",
        "one_that_died_is_replaced",
        "a_note_is_removed_by_who_wrote_it",
    ],
)
def test_a_name_of_a_test_without_an_actor_or_a_thing_is_found(name: str) -> None:
    assert IN_TESTS.search(name)


def test_a_test_may_name_an_actor_with_a_clause() -> None:
    assert not IN_TESTS.search("a_user_who_lists_acls_sees_the_threshold_of_one_that_left")
