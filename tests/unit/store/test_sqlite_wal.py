"""The descriptor of a SQLite file's log goes with the file, and is never another's."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.wal import Wal


def logs_open() -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue  # of the listing itself
    return [each for each in found if each.endswith("-wal")]


def test_a_file_that_nobody_closed_keeps_no_descriptor_and_warns_of_nothing(
    tmp_path: Path,
) -> None:
    SqliteFile(tmp_path / "charges.sqlite3")
    gc.collect()  # a warning of an unclosed file would fail this test
    assert not [each for each in logs_open() if each.startswith(str(tmp_path))]


def test_a_log_that_was_closed_closes_and_reads_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "a-wal").touch()
    (tmp_path / "other").write_bytes(b"x" * 100)
    wal = Wal(tmp_path / "a")
    wal.close()
    other = os.open(tmp_path / "other", os.O_RDONLY)  # gets the number that was closed
    try:
        wal.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            wal.round()
        assert os.read(other, 1) == b"x"
    finally:
        os.close(other)
