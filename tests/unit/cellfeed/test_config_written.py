"""The configuration in force: whole at every moment, and for its owner's eyes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.instance.config_file import load_config, write_config

BEFORE, AFTER = Config(datastore=DatastoreConfig(name="before")), Config()


def test_the_file_of_before_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path, kept = tmp_path / "config.yaml", tmp_path / "kept.yaml"
    write_config(BEFORE, path)
    os.link(path, kept)
    write_config(AFTER, path)
    assert load_config(kept) == BEFORE, "a reader that has it open reads the first version"
    assert load_config(path) == AFTER
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml", "kept.yaml"]


def test_a_disk_that_is_full_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.yaml"
    write_config(BEFORE, path)

    def full(_descriptor: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            write_config(AFTER, path)
    assert load_config(path) == BEFORE
    write_config(AFTER, path)
    assert load_config(path) == AFTER


@pytest.mark.parametrize(("before", "wanted"), [(None, 0o600), (0o640, 0o640), (0o400, 0o400)])
def test_a_new_file_is_for_its_owner_alone_and_an_older_one_keeps_its_readers(
    tmp_path: Path, before: int | None, wanted: int
) -> None:
    path = tmp_path / "config.yaml"
    if before is not None:
        write_config(BEFORE, path)
        path.chmod(before)
    write_config(AFTER, path)
    assert stat.S_IMODE(path.stat().st_mode) == wanted


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    path, target = tmp_path / "config.yaml", tmp_path / "etc" / "cellfeed.yaml"
    write_config(BEFORE, target)
    path.symlink_to(target)
    write_config(AFTER, path)
    assert path.is_symlink()
    assert load_config(target) == AFTER
