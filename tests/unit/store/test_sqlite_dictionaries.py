"""Dictionaries beside the cells in SQLite: a turn is never without its content, and a content that
is put to use again stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.engines.contract.dictionaries import Condition, KeptDictionary, with_turns
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.errors import StorageUnavailable

ONE = Dictionary("BASE", b"one", 1, 600)
TWO = Dictionary("BASE", b"two", 2, 600)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteFile]:
    with closing(SqliteFile(tmp_path / "cells.sqlite3")) as file:
        with file.write() as connection:
            connection.execute(
                "CREATE TABLE dictionary (dictionary_id INTEGER PRIMARY KEY, column_name TEXT,"
                " content BLOB, sha256 BLOB, trained_at_us INTEGER, samples INTEGER)"
            )
            connection.execute(
                "CREATE TABLE dictionary_turn (column_name TEXT, turn INTEGER, dictionary_id"
                " INTEGER, sha256 BLOB, PRIMARY KEY (column_name, turn))"
            )
        yield file


@pytest.fixture
def table(file: SqliteFile) -> SqliteDictionaries:
    return SqliteDictionaries(file)


def current(table: SqliteDictionaries) -> list[int]:
    return [turn.dictionary_id for turn in table.current().values()]


def test_a_content_that_is_not_there_gets_no_turn(table: SqliteDictionaries) -> None:
    table.add(ONE)
    assert table.use(ONE, 0)
    assert not table.use(TWO, 1)
    assert [each.turns for each in table.kept()] == [(0,)]


def test_a_content_that_was_put_to_use_again_is_not_taken_away(table: SqliteDictionaries) -> None:
    table.add(ONE)
    table.use(ONE, 0)
    stopped = table.stop_using(ONE.dictionary_id)
    assert table.use(ONE, 1)
    with pytest.raises(StorageUnavailable, match="was put to use again meanwhile"):
        table.take_away(ONE.dictionary_id, stopped)
    assert table.find(ONE.dictionary_id) == ONE
    table.take_away(ONE.dictionary_id, table.stop_using(ONE.dictionary_id))
    assert table.find(ONE.dictionary_id) is None


def test_puts_use_the_latest_turn_whose_content_is_stored(
    table: SqliteDictionaries, file: SqliteFile
) -> None:
    for turn, each in enumerate((ONE, TWO)):
        table.add(each)
        table.use(each, turn)
    assert current(table) == [TWO.dictionary_id]
    with file.write() as connection:
        connection.execute(
            "UPDATE dictionary SET sha256 = X'00' WHERE dictionary_id = ?", (TWO.dictionary_id,)
        )
    assert current(table) == [ONE.dictionary_id]


def test_a_content_that_is_not_the_one_of_its_turn_is_damaged() -> None:
    content = KeptDictionary(7, "BASE", Condition.WHOLE, b"mine", (), 1, 600, 3)
    turn = (7, "BASE", b"mine", 0)
    assert [each.condition for each in with_turns({7: content}, [turn])] == [Condition.WHOLE]
    other = (7, "BASE", b"another", 0)
    [kept] = with_turns({7: content}, [other])
    assert (kept.condition, kept.sha256, kept.turns) == (Condition.DAMAGED, b"another", (0,))
