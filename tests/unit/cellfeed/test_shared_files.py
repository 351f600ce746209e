"""Which run directories have the files of one embedded datastore in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.instance.shared_files import files_used
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import InvalidRequest


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(datastore=DatastoreConfig(directory=str(tmp_path / "store")))


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RunDir]:
    """The run directory of an instance whose supervisor runs, and none of its processes."""
    directory = RunDir(tmp_path / "other")
    directory.make()
    with directory.supervised():
        yield directory


def said_by(directory: RunDir, config: Config, *, share: bool = False) -> list[str]:
    """The lines that a start prints while it takes the files."""
    said: list[str] = []
    with files_used(directory, config, share, said.append):
        return said


def test_files_of_an_instance_that_runs_are_refused_or_shared_aloud(
    tmp_path: Path, config: Config, other: RunDir
) -> None:
    me = RunDir(tmp_path / "me")
    with files_used(other, config, False, lambda _: None):
        with pytest.raises(InvalidRequest, match="share its files with --share-files"):
            said_by(me, config)
        [line] = said_by(me, config, share=True)
        assert line.endswith(f"with the instance in {other.path}")
    assert said_by(me, config) == [], "it has ended"


def test_an_instance_does_not_conflict_with_itself(config: Config, other: RunDir) -> None:
    with files_used(other, config, False, lambda _: None):
        assert said_by(other, config) == []


def test_an_instance_that_was_killed_blocks_no_other(tmp_path: Path, config: Config) -> None:
    dead = RunDir(tmp_path / "dead")
    dead.make()
    with files_used(dead, config, False, lambda _: None):
        assert said_by(RunDir(tmp_path / "me"), config) == []


def test_files_of_another_instance_are_no_conflict(
    tmp_path: Path, config: Config, other: RunDir
) -> None:
    with files_used(other, config, False, lambda _: None):
        rides = Config(datastore=DatastoreConfig(name="rides", directory=str(tmp_path / "store")))
        assert said_by(RunDir(tmp_path / "me"), rides) == []
