"""A pytest plugin: the turn of each test, and which tests one worker runs.

Slow tests run first, in random order among themselves, so that workers end together. Groups come
before all others, the long and the large ones first. One worker runs each of them from its first
test to its last. Tests of one file are a group where servers are started once for the file: else
each worker would start them. A folder whose servers are started once counts as one file, and its
tests stay together.

pytest-xdist reads a test's group behind an ``@`` at the end of its id. Its release 3.8 writes that
where pytest 9.2 does not look, so it is done here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    for item in items:
        _group_with_home(item)
    _divide_groups(items)
    yield
    if getattr(config.option, "loadgroup", False):  # of a worker
        for item in items:
            _name_group(item)
    sizes = Counter(_group(item) for item in items)
    first: dict[tuple[str, Path | None], int] = {}
    for place, item in enumerate(items):
        for home in (None, _home(item)):
            first.setdefault((_group(item), home), place)

    def place_of(item: pytest.Item) -> tuple[int, int, int, int, int]:
        group = _group(item)
        together = (first[group, None], first[group, _home(item)]) if group else (0, 0)
        return (_turn(item), _rank(group), -sizes[group], *together)

    items.sort(key=place_of)


_PARTS: Final = {"mariadb-cluster": 3}
"""Of groups that one worker would run for as long as the others take for all the rest: so many
workers run some files each, with servers of their own."""

_LONG: Final = ("mariadb-cluster", "kafka", "mariadb-faults", "zookeeper", "client grid")
"""Groups that take minutes, the longest first. They begin before all others: the other workers wait
at the end for a long group that began late. A group of many tests is often short."""


def _rank(group: str) -> int:
    for rank, name in enumerate(_LONG):
        if group == name or (name in _PARTS and group.startswith(f"{name}-")):
            return rank
    return len(_LONG)


def _shared(item: pytest.Item, scopes: tuple[str, ...]) -> list[pytest.FixtureDef[object]]:
    """The test's fixtures of these scopes, but for private ones."""
    if not isinstance(item, pytest.Function):
        return []
    return [
        fixture
        for name, fixtures in item._fixtureinfo.name2fixturedefs.items()
        for fixture in fixtures
        if fixture.scope in scopes and not name.startswith("_")
    ]


def _home(item: pytest.Item) -> Path:
    """The folder or the file that starts the test's servers once."""
    folders = [item.config.rootpath / each.baseid for each in _shared(item, ("package",))]
    return max(folders, key=lambda folder: len(folder.parts), default=item.path)


def _divide_groups(items: list[pytest.Item]) -> None:
    """Every part gets about as many tests: the largest files first, each to the part that has the
    fewest. All workers divide alike."""
    sizes = Counter((_group(item), _home(item)) for item in items if _group(item) in _PARTS)
    parts = {group: [0] * count for group, count in _PARTS.items()}
    part_of: dict[tuple[str, Path], int] = {}
    for (group, home), size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        tests = parts[group]
        part_of[group, home] = part = tests.index(min(tests))
        tests[part] += size
    for item in items:
        if (part := part_of.get((group := _group(item), _home(item)), -1)) >= 0:
            item.add_marker(pytest.mark.xdist_group(f"{group}-{part + 1}"), append=False)


def _group_with_home(item: pytest.Item) -> None:
    """One worker runs all tests of a file, or of a folder, whose servers are started once for it.
    Else each worker would start them."""
    if _group(item) or not item.get_closest_marker("integration"):
        return
    if _shared(item, ("module", "package")):
        item.add_marker(pytest.mark.xdist_group(_home(item).stem))


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
