"""cellfeed backup verify --restore: the findings of a trial restore, which leaves nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from cellfeed.assembly.trial_restore import bytes_needed
from cellfeed.cli.main import command_line
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.restore_plan import Plan
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import CellfeedError, InvalidRequest, StorageUnavailable
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    watch_failpoint,
)
from tests.support.cli_instance import CELLFEED, ROOT
from tests.support.rides import rides, row_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """A folder with a full backup and an increment, 400 cells; a row was erased after both, and a
    third backup knows it."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text("datastore: {shards: 4}\n")
    words = ("backup", "create", tmp_path / "backups", "--run-dir", run_dir)
    for first, more in ((0, ()), (300, ("--onto", "latest"))):
        with Datastore.open_embedded(run_dir / "store", "trips", 4) as store:
            store.put_new_cells(rides(first, 300 if first == 0 else 100))
        assert told(*words, *more)[0] == 0
    with Datastore.open_embedded(run_dir / "store", "trips", 4) as store:
        store.erase_row(row_of(7))
    assert told(*words)[0] == 0
    return tmp_path / "backups"


@pytest.fixture
def tmp_dir(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def words(backups: Path, tmp_dir: Path) -> list[str]:
    """A trial of the increment."""
    increment = sorted_names(backups)[1]
    given = ["backup", "verify", backups, "--backup", increment, "--restore", "--tmp-dir", tmp_dir]
    return [str(each) for each in given]


def sorted_names(backups: Path) -> list[str]:
    return [json.loads(line)["backup"] for line in told("backup", "list", backups, "--json")[1]]


def told(*words: object) -> tuple[int, list[str], BaseException | None]:
    """Exit code, lines of the output, error."""
    result = CliRunner().invoke(command_line(str(words[0])), [str(word) for word in words])
    return result.exit_code, result.stdout.splitlines(), result.exception


def damage(words: Sequence[str]) -> str:
    exit_code, [line], error = told(*words, "--json")
    assert exit_code == 1
    assert isinstance(error, CellfeedError)
    assert error.exit_code == 1
    found = json.loads(line)
    assert (found["whole"], found["restored"]) == (False, None)
    [text] = found["damage"]
    assert isinstance(text, str)
    return text


def test_a_whole_backup_is_restored_with_its_chain_and_nothing_is_left(
    words: list[str], tmp_dir: Path
) -> None:
    seen = list[tuple[int, bool]]()

    def look() -> None:
        [folder] = tmp_dir.iterdir()
        content = b"".join(each.read_bytes() for each in folder.rglob(CELLS_FILE))
        seen.append((folder.stat().st_mode & 0o777, bool(content)))

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    watch_failpoint("sqlite.restore.after_rename", look)
    try:
        exit_code, [line], _ = told(*words, "--json")
    finally:
        clear_failpoints()
    found = json.loads(line)
    assert (exit_code, found["whole"], len(found["stands_on"])) == (0, True, 1)
    assert (found["restored"]["ids"], found["restored"]["erased"]) == (400, 1)
    assert seen == [(0o700, True)]
    assert list(tmp_dir.iterdir()) == []
    assert {number: signal.getsignal(number) for number in before} == before
    text = " ".join(told(*words)[1])
    assert "restored on trial, read back and removed: 400 ids" in text


def test_a_store_that_differs_from_the_backup_is_damage(
    words: list[str], tmp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, complete = SqliteTarget.load, SqliteTarget.complete

    def other_body(target: SqliteTarget, shard: int, cells: Sequence[StoredCell]) -> None:
        load(target, shard, [*cells[:-1], cells[-1]._replace(body=encode_body(b'{"other":1}'))])

    def other_end(target: SqliteTarget, plan: Plan) -> None:
        logs = {shard: log._replace(erased=()) for shard, log in plan.logs.items()}
        complete(target, replace(plan, logs=logs))

    def other_state(target: SqliteTarget, plan: Plan) -> None:
        complete(target, replace(plan, state=()))

    for name, fault, says in (
        ("load", other_body, "by their digest"),
        ("complete", other_end, ": the restored log goes from 0 to"),
        ("complete", other_state, "the restored state differs from the backup's"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(SqliteTarget, name, fault)
            assert says in damage(words)
        assert list(tmp_dir.iterdir()) == []


def test_only_a_trial_finds_a_later_backup_that_is_unreadable(
    words: list[str], backups: Path, tmp_dir: Path
) -> None:
    later = backups / sorted_names(backups)[2] / "manifest.json"
    later.write_bytes(later.read_bytes()[:-20])
    assert told(*(word for word in words[:5]))[0] == 0
    assert "may be a later backup" in damage(words)
    assert list(tmp_dir.iterdir()) == []


@pytest.mark.parametrize("place", ["restore.after_load", "sqlite.restore.after_rename"])
def test_a_trial_that_fails_leaves_nothing(words: list[str], tmp_dir: Path, place: str) -> None:
    set_failpoint(place, "raise")
    try:
        with pytest.raises(FailpointReached):
            told(*words)
    finally:
        clear_failpoints()
    assert list(tmp_dir.iterdir()) == []


def test_a_trial_takes_no_more_room_than_it_asks_for(
    words: list[str], backups: Path, tmp_dir: Path
) -> None:
    taken = list[int]()

    def look() -> None:
        sizes = [each.stat().st_blocks * 512 for each in tmp_dir.rglob("*") if each.is_file()]
        taken.append(sum(sizes))

    watch_failpoint("restore.before_open", look)
    try:
        assert told(*words)[0] == 0
    finally:
        clear_failpoints()
    chain = sorted_names(backups)[:2]
    sizes = [each.stat().st_size for name in chain for each in (backups / name).glob("cells-*")]
    assert [size <= bytes_needed(sum(sizes)) for size in taken] == [True]
    assert taken[0] > 1.5 * sum(sizes)  # the write-ahead log counts as well


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_trial_that_a_signal_ends_leaves_nothing(
    words: list[str], tmp_dir: Path, number: signal.Signals
) -> None:
    with started(words, "sqlite.restore.after_rename=sleep:120") as process:
        wait_until(
            lambda: bool(list(tmp_dir.glob(f"*/store/datastore/{CELLS_FILE}"))), "a trial's store"
        )
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    assert list(tmp_dir.iterdir()) == []


def test_the_next_trial_removes_the_leftovers_of_a_killed_one_and_no_other_files(
    words: list[str], tmp_dir: Path
) -> None:
    with started(words, "sqlite.restore.after_rename=kill") as process:
        assert process.wait(timeout=60) == -signal.SIGKILL
    [left] = tmp_dir.iterdir()
    assert list(left.glob(f"store/datastore/{CELLS_FILE}"))
    others = [tmp_dir / f"{left.name[:-4]}{end}" for end in ("abcd", "no-trial", "1234")]
    for other in others:
        (other / "store").mkdir(parents=True)
        (other / "lock").touch()
    (others[0] / "lock").unlink()  # nothing proves that a trial made it
    with (others[2] / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a trial that runs
        assert told(*words)[0] == 0
    assert sorted(tmp_dir.iterdir()) == sorted(others)


def test_a_removal_that_was_cut_off_is_ended_by_the_next_trial(
    words: list[str], tmp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", _fails)
        error = told(*words)[2]
        assert isinstance(error, StorageUnavailable)
    [left] = tmp_dir.iterdir()
    assert f"may be in {left}; remove it" in str(error)
    assert told(*words)[0] == 0
    assert list(tmp_dir.iterdir()) == []


def test_a_trial_without_room_is_refused_before_it_makes_a_file(
    words: list[str], tmp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(told(*(word for word in words if word != "--restore"))[2], InvalidRequest)
    assert isinstance(told(*words[:-1], tmp_dir / "none")[2], InvalidRequest)
    total, used, _ = shutil.disk_usage(tmp_dir)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(total, used, 1_000))
    error = told(*words)[2]
    assert isinstance(error, StorageUnavailable)
    assert "has 1000 bytes free" in str(error)
    assert list(tmp_dir.iterdir()) == []


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def _fails(path: Path) -> None:
    raise OSError(errno.EIO, "the disk failed", str(path))


@contextmanager
def started(words: Sequence[str], failpoints: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process, which is ended behind it."""
    with subprocess.Popen(
        [*CELLFEED, *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
    ) as process:
        try:
            yield process
        finally:
            process.kill()
