"""A pytest plugin: the turn of each test, and which tests one worker runs.

Slow tests run first, in random order among themselves, so that workers end together. Groups come
before all others, the largest first: one worker runs each of them from its first test to its last.
Tests of one file are a group where servers are started once for the file: else each worker would
start them.

pytest-xdist reads a test's group behind an ``@`` at the end of its id. Its release 3.8 writes that
where pytest 9.2 does not look, so it is done here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    for item in items:
        _group_with_module(item)
    _divide_groups(items)
    yield
    if getattr(config.option, "loadgroup", False):  # of a worker
        for item in items:
            _name_group(item)
    sizes = Counter(_group(item) for item in items)
    items.sort(key=lambda item: (_turn(item), -sizes[_group(item)]))


_PARTS: Final = {"mariadb-cluster": 3}
"""Of groups that one worker would run for as long as the others take for all the rest: so many
workers run some files each, with servers of their own."""


def _divide_groups(items: list[pytest.Item]) -> None:
    files = sorted({str(item.path) for item in items if _group(item) in _PARTS})
    for item in items:
        if (parts := _PARTS.get(group := _group(item))) is not None:
            part = files.index(str(item.path)) % parts
            item.add_marker(pytest.mark.xdist_group(f"{group}-{part + 1}"), append=False)


def _group_with_module(item: pytest.Item) -> None:
    """One worker runs all tests of a file whose servers are started once for the file. Else each
    worker would start them."""
    if not isinstance(item, pytest.Function) or _group(item):
        return
    shared = any(
        fixture.scope in ("module", "package") and not name.startswith("_")
        for name, fixtures in item._fixtureinfo.name2fixturedefs.items()
        for fixture in fixtures
    )
    if shared and item.get_closest_marker("integration"):
        item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _name_group(item: pytest.Item) -> None:
    if (group := _group(item)) and not item.nodeid.endswith(f"@{group}"):
        item._id = type(item.id).parse(f"{item.nodeid}@{group}")


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else ""


def _turn(item: pytest.Item) -> int:
    marks = {mark.name for mark in item.iter_markers()}
    return next(
        (
            turn
            for turn, mark in enumerate(("xdist_group", "slow", "faults", "integration"))
            if mark in marks
        ),
        4,
    )
