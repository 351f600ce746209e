"""Staged files between two processes: a committed file is never removed, and a name is no file
until it is looked at."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from cellfeed.consumers.warehouse import staging as module
from cellfeed.consumers.warehouse.chain import ShardChain, recover_shard
from cellfeed.consumers.warehouse.layout import STAGING
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.staging import StagedFile, put_if_absent, try_lock_abandoned
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.warehouse_log import SHARD, Log, assert_prefix, feed, table_directory


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / STAGING
    folder.mkdir()
    return folder


@pytest.mark.parametrize("dies_at", ["warehouse.commit.linked", "warehouse.commit.durable"])
def test_a_cleaner_that_read_the_chain_before_the_commit_keeps_its_file(
    tmp_path: Path, dies_at: str
) -> None:
    """The loader commits and dies before it moves its file, while a cleaner is on its way."""
    directory, log = table_directory(tmp_path), Log(range(10))
    cleaner = ShardChain(directory, SHARD)
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 10)
    set_failpoint(dies_at, "raise")
    with pytest.raises(FailpointReached):
        loader.flush()
    clear_failpoints()
    recover_shard(cleaner)
    assert not list((directory / STAGING).iterdir())
    assert list(directory.glob("shard-*/*.parquet"))  # the cleaner itself moved it
    assert assert_prefix(directory, log) == 10


def test_one_living_owner_does_not_keep_the_files_of_dead_ones(tmp_path: Path) -> None:
    directory = table_directory(tmp_path)
    names = [f"{SHARD:04d}-{letter}.parquet.staged" for letter in "abc"]
    for name in names:
        (directory / STAGING / name).write_bytes(b"half a fi")
    with (directory / STAGING / names[0]).open("rb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        ShardLoader(directory, SHARD)
        assert [path.name for path in (directory / STAGING).iterdir()] == names[:1]


def test_a_missing_file_or_one_with_an_owner_is_not_abandoned(staging: Path) -> None:
    assert try_lock_abandoned(staging / "gone") is None
    with StagedFile(staging, "0007") as owned:
        assert try_lock_abandoned(owned.path) is None
    free = try_lock_abandoned(owned.path)
    assert free is not None
    with free:
        assert try_lock_abandoned(owned.path) is None  # the first cleaner owns it now


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_another_cleaner_took_first_is_not_abandoned(
    staging: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """Its name is removed, or is another file's, between open and lock."""
    path = staging / "0007-x.parquet.staged"
    path.write_bytes(b"x")
    lock = fcntl.flock

    def taken_first(file: Any, how: int) -> None:
        path.unlink()
        if replaced:
            path.write_bytes(b"of another loader")
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", taken_first)
    assert try_lock_abandoned(path) is None
    assert path.exists() is replaced


def test_a_new_file_that_a_cleaner_took_before_it_was_locked_is_made_again(
    staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    taken: list[Path] = []

    def taken_once(file: Any, how: int) -> None:
        if not taken:
            [path] = staging.iterdir()
            taken.append(path)
            path.unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", taken_once)
    with StagedFile(staging, "0007") as made:
        assert made.path != taken[0]
        assert list(staging.iterdir()) == [made.path]


def test_a_record_is_whole_under_its_name_and_stays_the_first_one(
    staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = staging.parent / "record.json"
    link, seen = module.link_if_absent, []

    def looked_at(source: Path, name: Path) -> bool:
        seen.append(source.read_bytes())
        return link(source, name)

    monkeypatch.setattr(module, "link_if_absent", looked_at)
    assert put_if_absent(target, b"first", staging, "0007")
    assert not put_if_absent(target, b"second", staging, "0007")
    assert seen == [b"first", b"second"]
    assert target.read_bytes() == b"first"
    assert not list(staging.iterdir())
