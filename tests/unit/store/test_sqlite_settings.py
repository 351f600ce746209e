"""The settings that acknowledged-is-on-disk rests on, read back from every connection that the
embedded engine uses."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.engines.sqlite.files import SqliteFile

FULL = 2
WANTED = {
    "journal_mode": "wal",
    "synchronous": FULL,
    "wal_autocheckpoint": 0,
    "secure_delete": 1,
    "foreign_keys": 1,
    "mmap_size": 0,
}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteFile]:
    with closing(SqliteFile(tmp_path / "store.sqlite3")) as opened:
        yield opened


def settings_of(connection: sqlite3.Connection) -> dict[str, object]:
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in WANTED}


@pytest.mark.parametrize("way", ["write", "read", "snapshot"])
def test_every_connection_syncs_each_commit_and_checkpoints_only_on_request(
    file: SqliteFile, way: str
) -> None:
    ways: dict[str, Callable[[], object]] = {
        "write": file.write,
        "read": file.read,
        "snapshot": file.snapshot,
    }
    with ways[way]() as connection:  # type: ignore[attr-defined]
        assert settings_of(connection) == WANTED
    with ways[way]() as again:  # type: ignore[attr-defined]
        assert settings_of(again) == WANTED, "after its first use too"


def test_the_connection_that_checkpoints_syncs_too(file: SqliteFile) -> None:
    with file.write() as connection:
        connection.execute("CREATE TABLE t (x)")
    opened = file._checkpoints._opened()
    assert settings_of(opened) == WANTED
