"""An open database is recognised by its files, also where only its folder is asked."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.engines.sqlite import same_files
from cellfeed.store.engines.sqlite.same_files import SameFiles
from cellfeed.store.errors import StorageUnavailable

NEVER = 1e-9
"""Looks per second, where only a change of the folder may lead to one."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "store" / "cells.sqlite3"
    path.parent.mkdir()
    with opened(path):
        yield path


def opened(path: Path) -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS t (n)")
    return closing(connection)


def followed(path: Path) -> SameFiles:
    same = SameFiles(path)
    assert same.opened()
    same.check()
    return same


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def delete_the_wal(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def replace_the_shared_memory(path: Path) -> None:
    replace(path.with_name(f"{path.name}-shm"))


def move_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace_the_folder(path: Path) -> None:
    move_the_folder(path)
    shutil.copytree(path.parent.with_name("elsewhere"), path.parent)


CHANGES = [
    replace,
    Path.unlink,
    delete_the_wal,
    replace_the_shared_memory,
    move_the_folder,
    replace_the_folder,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("folder", ["stands still", "changed just now"])
def test_every_change_is_noticed_at_once(
    database: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], folder: str
) -> None:
    monkeypatch.setattr(same_files, "_LOOKS_PER_S", NEVER)
    if folder == "stands still":
        monkeypatch.setattr(same_files, "_TICK_NS", 0)
        time.sleep(0.02)
    same = followed(database)
    same.check()
    change(database)
    with pytest.raises(StorageUnavailable, match="not the file any more"):
        same.check()


def test_a_folder_without_changes_is_asked_only_for_its_time(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a commit takes three system calls more, twice."""
    monkeypatch.setattr(same_files, "_LOOKS_PER_S", NEVER)
    monkeypatch.setattr(same_files, "_TICK_NS", 0)
    time.sleep(0.02)
    same = followed(database)
    monkeypatch.setattr(SameFiles, "_inodes", lambda _: pytest.fail("the files were compared"))
    same.check()


def test_a_change_within_one_tick_of_the_clock_is_noticed(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's times are of now, and a second change in the same tick leaves them."""
    monkeypatch.setattr(same_files, "_LOOKS_PER_S", NEVER)
    now_ns = time.time_ns()
    monkeypatch.setattr(SameFiles, "_times", lambda _: (1, 1, now_ns, now_ns))
    same = followed(database)
    replace(database)
    with pytest.raises(StorageUnavailable, match="not the file any more"):
        same.check()


def test_a_target_of_a_link_that_is_replaced_is_noticed(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the link does not change with it."""
    monkeypatch.setattr(same_files, "_LOOKS_PER_S", NEVER)
    monkeypatch.setattr(same_files, "_TICK_NS", 0)
    link = tmp_path / "links" / database.name
    link.parent.mkdir()
    for part in ("", "-wal", "-shm"):
        link.with_name(link.name + part).symlink_to(database.with_name(database.name + part))
    time.sleep(0.02)
    same = followed(link)
    replace(database)
    with pytest.raises(StorageUnavailable, match="not the file any more"):
        same.check()


def test_a_change_that_the_folders_time_does_not_show_is_found_by_the_next_look(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount over the file, for one."""
    monkeypatch.setattr(SameFiles, "_times", lambda _: (1, 1, 1, 1))
    same = followed(database)
    replace(database)
    time.sleep(1.5 / same_files._LOOKS_PER_S)
    with pytest.raises(StorageUnavailable, match="not the file any more"):
        same.check()
