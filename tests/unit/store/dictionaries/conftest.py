"""Dictionaries that these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import (
    forget_dictionaries,
)
from cellfeed.store.cells.dictionary import Dictionary
from tests.support.dictionaries_known import first, second


@pytest.fixture(scope="module", autouse=True)
def _trained_before() -> None:
    """A process that trains a dictionary knows it: no test begins with a dictionary that it has
    trained itself."""
    first(), second()


@pytest.fixture
def source() -> Iterator[dict[int, Dictionary]]:
    """An open store with these dictionaries, and a process that knows none."""
    forget_dictionaries()
    there: dict[int, Dictionary] = {}
    known_dictionaries.add_source(there.get)
    yield there
    known_dictionaries.remove_source(there.get)
