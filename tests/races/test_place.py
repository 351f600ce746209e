"""The look at everything after a race: a node that refuses for a moment is asked again, a false
answer fails at once."""

from __future__ import annotations

from typing import Any

import pytest

from cellfeed.store.errors import StorageUnavailable
from tests.races.clusters import Place


class Answers:
    """In the place of an engine and its state. ``answers``: of the next commits; an error is
    raised."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.state = self

    def commit(self, _: object) -> int:
        match self.answers.pop(0):
            case Exception() as error:
                raise error
            case revision:
                return revision


def place(*answers: int | Exception) -> Place:
    engine: Any = Answers(*answers)
    return Place({}, engine)


def test_a_node_that_is_left_alone_for_a_moment_is_asked_again() -> None:
    cut = StorageUnavailable("node a1 is left alone for a moment: Lost connection")
    found = place(cut, cut, 7)
    found._commit_entry()
    assert found.revisions == [7]


def test_a_revision_that_was_given_before_fails_at_once() -> None:
    found = place(7, 7, 8)
    found._commit_entry()
    with pytest.raises(AssertionError, match="revision 7 was given before"):
        found._commit_entry()


def test_a_defect_of_the_engine_fails_at_once() -> None:
    found = place(ZeroDivisionError("a defect"), 7)
    with pytest.raises(ZeroDivisionError):
        found._commit_entry()
