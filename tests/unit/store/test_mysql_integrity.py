"""Answers of a server to the check of its tables, and the findings that come of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.mysql import integrity
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.layout import Layout

TABLE = "trips_0000.cell"


class Server:
    """Answers statements by the word that is in them."""

    def __init__(self, answers: dict[str, list[tuple[object, ...]]]) -> None:
        self._answers = answers

    @contextmanager
    def connection(self) -> Iterator[Server]:
        yield self

    def answer(self, statement: str) -> list[tuple[object, ...]]:
        return next(rows for word, rows in self._answers.items() if word in statement)


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "query", lambda server, statement: server.answer(statement))
    monkeypatch.setattr(integrity, "moment", lambda server: server.connection())
    monkeypatch.setattr(integrity, "head_of", lambda *_: (0, 2))


def findings(answers: dict[str, list[tuple[object, ...]]]) -> list[str]:
    found = Findings()
    server = cast("MySqlServer", Server({"PRIMARY": [(2, 5)], "triple": [(2, 5)], **answers}))
    integrity._check_table("c1/a", server, Layout("trips", 1), 0, found)
    return [each.kind for each in found.found]


WELL = (TABLE, "check", "status", "OK")


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        ([WELL], []),
        ([(TABLE, "check", "note", "one more thing"), WELL], []),
        ([(TABLE, "check", "Warning", "The B-tree of index triple is corrupted."), WELL], 1),
        ([(TABLE, "check", "error", "Corrupt")], 1),
        ([(TABLE, "check", "status", "Operation failed")], 1),
    ],
)
def test_every_answer_but_a_note_and_ok_is_a_finding(
    rows: list[tuple[object, ...]], kinds: list[str] | int
) -> None:
    assert findings({"CHECK TABLE": rows}) == (["integrity"] if kinds else [])


@pytest.mark.parametrize("by_key", [(1, 5), (2, 6)])
def test_keys_that_name_other_cells_are_a_finding_though_they_are_as_many(
    by_key: tuple[int, int],
) -> None:
    assert findings({"CHECK TABLE": [WELL]}) == []
    assert findings({"CHECK TABLE": [WELL], "triple": [by_key]}) == ["key"]
