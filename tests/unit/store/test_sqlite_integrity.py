"""The check and the opening of an embedded store's files: one that is missing, or of another
store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.integrity import check_files
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE, STATE_FILE
from cellfeed.store.errors import ProtectData


def made(directory: Path) -> Path:
    SqliteEngine(directory, "trips", 2).close()
    return directory


def found_in(directory: Path) -> list[tuple[str, str]]:
    into = Findings()
    check_files(directory, "trips", 2, into)
    return [(each.kind, each.place) for each in into.found]


def remove_state(directory: Path) -> None:
    for each in directory.glob(f"{STATE_FILE}*"):
        each.unlink()


@pytest.mark.parametrize("adopting", [0, 1])
def test_a_lost_file_is_a_finding_unless_it_may_never_have_been_made(
    tmp_path: Path, adopting: int
) -> None:
    """A store from before there were identities had none beside its cells."""
    directory = made(tmp_path / "trips")
    assert found_in(directory) == []
    with closing(sqlite3.connect(directory / CELLS_FILE)) as connection, connection:
        connection.execute("UPDATE history_file SET adopting = ?", (adopting,))
    remove_state(directory)
    assert found_in(directory) == ([] if adopting else [("identity", STATE_FILE)])


def test_a_file_of_another_store_is_a_finding(tmp_path: Path) -> None:
    directory, other = made(tmp_path / "trips"), made(tmp_path / "other")
    remove_state(directory)
    (other / STATE_FILE).rename(directory / STATE_FILE)
    assert found_in(directory) == [("identity", STATE_FILE)]


def test_a_file_without_an_identity_is_not_taken_for_a_removed_one(tmp_path: Path) -> None:
    """An empty state would give every consumer its first offset again."""
    directory = made(tmp_path / "trips")
    with closing(sqlite3.connect(directory / STATE_FILE)) as connection, connection:
        connection.execute("DROP TABLE history")
    with pytest.raises(ProtectData, match="has no history identity"):
        made(directory)
