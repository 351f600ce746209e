"""A run has its temporary files in memory where there is room, and removes them afterwards."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests import in_memory

NOBODY = 2**22 + 1  # above every pid of Linux


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the disk in memory, and no TMPDIR."""
    monkeypatch.setattr(in_memory, "MEMORY_DISK", tmp_path)
    monkeypatch.setattr(in_memory, "ROOM_MIN_BYTES", 0)
    monkeypatch.setattr(in_memory, "FILES_MIN", 0)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setenv("TMPDIR", "")  # so that it is as before afterwards
    monkeypatch.delenv("TMPDIR")
    return tmp_path


def own(memory: Path) -> Path:
    return memory / f"cellfeed-tests-{os.getpid()}"


def test_all_temporary_files_are_there_and_go_with_the_run(memory: Path) -> None:
    in_memory.use_memory()
    assert os.environ["TMPDIR"] == tempfile.gettempdir() == str(own(memory))
    (own(memory) / "file").touch()
    in_memory.remove_own()
    assert not own(memory).exists()


def test_a_temporary_folder_of_the_users_choice_is_kept(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    in_memory.use_memory()
    assert os.environ["TMPDIR"] == "/var/tmp"
    assert not own(memory).exists()


@pytest.mark.parametrize("bound", ["ROOM_MIN_BYTES", "FILES_MIN"])
def test_without_room_files_are_on_the_disk(
    memory: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(in_memory, bound, 1 << 62)
    in_memory.use_memory()
    assert "TMPDIR" not in os.environ


def test_without_a_disk_in_memory_files_are_on_the_disk(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_memory, "MEMORY_DISK", memory / "none")
    in_memory.use_memory()
    assert "TMPDIR" not in os.environ


def test_a_folder_that_another_run_removes_meanwhile_is_left_to_that_run(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = memory / f"cellfeed-tests-{NOBODY}"
    folder.mkdir()

    def ends(_: int) -> bool:
        folder.rmdir()
        return False

    monkeypatch.setattr("tests.in_memory.psutil.pid_exists", ends)
    in_memory.use_memory()
    assert sorted(memory.iterdir()) == [own(memory)]


def test_leftovers_of_killed_runs_go_after_ten_minutes_and_running_ones_stay(memory: Path) -> None:
    left, recent, living = (
        memory / f"cellfeed-tests-{pid}" for pid in (NOBODY, NOBODY + 1, os.getppid())
    )
    other = memory / "of-others"
    for folder in (left, recent, living, other):
        folder.mkdir()
        (folder / "file").touch()
    for folder in (left, living, other):
        os.utime(folder, (0, 0))
    in_memory.use_memory()
    assert sorted(memory.iterdir()) == sorted([own(memory), recent, living, other])
