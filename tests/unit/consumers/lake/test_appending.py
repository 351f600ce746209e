"""Additions whose commit fails, happens unseen, or comes second."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.consumers.lake import appending
from cellfeed.consumers.lake.appending import Appending, Outcome, append
from cellfeed.consumers.lake.iceberg_table import IcebergTable
from cellfeed.consumers.lake.positions import Position
from cellfeed.consumers.lake.views import LakeView
from cellfeed.store.errors import Unavailable
from tests.support.lake_tables import addition, make, place_of
from tests.support.lying_catalog import lie


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "PAUSE_FIRST_S", 0.0)


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    made = make(tmp_path, "iceberg")
    assert isinstance(made, IcebergTable)
    return made


@pytest.mark.parametrize("answer", ["unknown after", "lost after"])
def test_a_commit_that_happened_is_not_repeated_after_any_error_of_the_catalog(
    answer: str, table: IcebergTable, tmp_path: Path
) -> None:
    liar = lie(table, answer)
    assert append(table, addition(table, {0: 20})) is Outcome.LANDED
    assert liar.commits == 1
    assert table.look().positions == {0: Position(20, 20)}
    assert LakeView(place_of(tmp_path, "iceberg")).query("SELECT count(*) AS n FROM cells") == [
        {"n": 20}
    ]


def test_a_commit_that_a_proxy_repeated_and_called_refused_stays_whole_and_is_not_repeated(
    table: IcebergTable, tmp_path: Path
) -> None:
    liar = lie(table, "refused after")
    assert append(table, addition(table, {0: 20})) is Outcome.OVERTAKEN, "as far as anybody knows"
    assert liar.commits == 1
    assert table.look().positions == {0: Position(20, 20)}
    rows = LakeView(place_of(tmp_path, "iceberg")).query("SELECT count(*) AS n FROM cells")
    assert rows == [{"n": 20}]


@pytest.mark.parametrize("answer", ["unknown", "lost", "refused"])
def test_a_commit_that_did_not_happen_is_tried_again(answer: str, table: IcebergTable) -> None:
    liar = lie(table, answer, answer)
    assert append(table, addition(table, {0: 20})) is Outcome.LANDED
    assert liar.commits == 1
    assert sum(each.rows for each in table.look().files()) == 20


def test_an_outcome_that_stays_unknown_is_settled_by_the_next_call(table: IcebergTable) -> None:
    rows = Appending(table, addition(table, {0: 20}))
    liar = lie(table, *["unknown"] * (appending.ATTEMPTS - 1), "unknown after")
    with pytest.raises(Unavailable, match="InternalServerError"):
        rows.run()
    assert rows.run() is Outcome.LANDED
    assert liar.commits == 1


def test_a_loader_that_finds_its_end_reached_without_a_try_of_its_own_was_overtaken(
    table: IcebergTable,
) -> None:
    append(table, addition(table, {0: 20}))
    assert append(table, addition(table, {0: 20})) is Outcome.OVERTAKEN
    assert sum(each.rows for each in table.look().files()) == 20


def test_a_catalog_that_is_away_is_unavailable_and_nothing_was_tried(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = addition(table, {0: 20})

    def away(*_: object) -> object:
        raise ConnectionError("refused")

    with monkeypatch.context() as patched:
        patched.setattr(table._catalog, "load_table", away)
        with pytest.raises(Unavailable, match="ConnectionError"):
            append(table, rows)
    assert append(table, rows) is Outcome.LANDED
