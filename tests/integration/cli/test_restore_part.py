"""A row or a shard of a backup goes into a store that has cells: the cells that are put, counted,
named and refused, beside a running worker and after a kill."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pyrage
import pytest
from typer.testing import CliRunner

from cellfeed.cli.main import command_line
from cellfeed.store.backups.part_history import NO_HISTORY_ID
from cellfeed.store.cells.cell import RESTORED_COLUMN, NewCell, StoredCell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.instance_lock import exclusive_lock
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    InvalidRequest,
    NotFound,
    ProtectData,
    StorageUnavailable,
    UnknownShard,
)
from cellfeed.store.failpoints import clear_failpoints, watch_failpoint
from tests.support.cli_commands import done, killed, refused
from tests.support.cli_instance import EMBEDDED, cellfeed, running
from tests.support.rides import rides, row_of

pytestmark = pytest.mark.integration

SHARDS = 4
ROW = row_of(7)
SHARD = shard_of(ROW.bytes, SHARDS)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An instance's, none of whose processes run, with 300 cells."""
    return made(tmp_path / "run")


def made(directory: Path) -> Path:
    directory.mkdir()
    (directory / "config.yaml").write_text("datastore: {shards: 4}\n")
    with store_of(directory) as store:
        store.put_new_cells(rides(0, 300))
        store.put_new_cells([NewCell(ROW.bytes, "NOTE", n, b'{"n":%d}' % n) for n in range(3)])
    return directory


def store_of(run_dir: Path) -> Datastore:
    return Datastore.open_embedded(run_dir / "store", "trips", SHARDS)


@pytest.fixture
def backups(run_dir: Path, tmp_path: Path) -> Path:
    """A folder with one backup of it."""
    done("backup", "create", tmp_path / "backups", "--run-dir", run_dir)
    return tmp_path / "backups"


def trimmed(run_dir: Path) -> int:
    """Takes all cells of the shard away, but one that is put for it; how many they were."""
    with store_of(run_dir) as store:
        end = store.heads()[SHARD].next_added_id
        [last] = [each for each in rides(900, 40) if shard_of(each.row_key, SHARDS) == SHARD][:1]
        store.put_new_cells([last])
        while store.trim(SHARD, end) < end:
            pass
    return end


def cells_of(run_dir: Path, shard: int = SHARD) -> list[StoredCell]:
    with store_of(run_dir) as store:
        head = store.heads()[shard]
        return store.engine.scan(shard, head.log_start, 10_000)


def part(*words: object, exit_code: int = 0) -> dict[str, Any]:
    """The command's output."""
    result = CliRunner().invoke(
        command_line("restore"), ["restore", *(str(word) for word in words), "--json"]
    )
    assert result.exit_code == exit_code, (result.output, result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def counts(found: dict[str, object]) -> dict[str, object]:
    return {
        name: count
        for name, count in found.items()
        if type(count) is int and count and name != "shard"
    }


def test_a_trimmed_row_is_restored_once_as_new_cells(run_dir: Path, backups: Path) -> None:
    before = [cell for cell in cells_of(run_dir) if cell.row_key == ROW.bytes]
    trimmed(run_dir)
    end = cells_of(run_dir)[-1]
    words = (backups, "--into", run_dir, "--row-key", ROW)
    told = part(*words, "--dry-run")
    assert counts(told) == {"stored": 4}
    assert (told["row_key"], told["dry_run"], told["complete"]) == (str(ROW), True, True)
    assert cells_of(run_dir) == [end], "a dry run puts nothing"
    assert counts(part(*words)) == {"stored": 4}
    back = cells_of(run_dir)[1:]
    assert [cell.added_id for cell in back] == [end.added_id + n for n in range(1, 5)]
    assert {(cell.row_key, *cell[2:4], cell.body) for cell in back} == {
        (cell.row_key, *cell[2:4], cell.body) for cell in before
    }
    assert all(cell.created_at_us >= end.created_at_us for cell in back)
    assert counts(part(*words)) == {"same": 4}
    assert "4 cells of" in (text := done("restore", *words))
    assert "0 put, 4 there already" in text


def test_restoring_a_shard_names_differences_to_a_later_backup_and_overwrites_no_cell(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    early = next(each.name for each in backups.iterdir() if each.is_dir())
    lost = [each for each in rides(300, 100) if shard_of(each.row_key, SHARDS) == SHARD]
    with store_of(run_dir) as store:
        store.put_new_cells(rides(300, 100))
    done("backup", "create", backups, "--run-dir", run_dir)
    into = tmp_path / "new"
    config = ("--config", run_dir / "config.yaml")
    ahead = ("--readers-ahead", "raise-epoch", "--backup", early)
    done("restore", backups, "--into", into, *config, *ahead)
    other = lost[0]._replace(body_json=b'{"other":"body"}')
    with store_of(into) as store:
        store.put_new_cells([other, lost[1]])
    before = cells_of(into)
    words = (backups, "--into", into, *config, "--shard", SHARD)
    of_first = sum(cell.column_name != RESTORED_COLUMN for cell in before) - 2
    expected = {"stored": len(lost) - 2, "same": of_first + 1, "other": 1}
    for more in (("--dry-run",), ()):
        told = part(*words, *more, exit_code=1)
        assert counts(told) == expected
        [problem] = told["problems"]
        assert problem["row_key"] == str(UUID(bytes=other.row_key))
        assert (problem["column_name"], problem["error"]) == ("BASE", "conflict")
    after = cells_of(into)
    assert after[: len(before)] == before, "nothing was overwritten"
    assert {cell.row_key for cell in after[len(before) :]} == {each.row_key for each in lost[2:]}
    assert counts(part(*words, exit_code=1)) == {"same": len(after) - 2, "other": 1}
    # The note of that restore speaks of places in its own log: it is put into no other one.
    done("backup", "create", tmp_path / "again", "--run-dir", into, *config)
    told = part(tmp_path / "again", "--into", into, *config, "--shard", SHARD)
    assert counts(told) == {"same": len(after) - 1, "log_own": 1}


@pytest.mark.parametrize("known_to", ["the store", "its log alone", "the folder", "the backup"])
def test_a_row_that_was_erased_is_never_put_back(
    known_to: str, run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    into = run_dir
    match known_to:
        case "the store":
            with store_of(run_dir) as store:
                store.erase_row(ROW)
            trimmed(run_dir)  # the log's own cell, by which puts are refused, has gone
        case "its log alone":
            with store_of(run_dir) as store:
                store.erase_row(ROW)
                gone = {each.key: None for each in store.state.list("erased/")}
                store.state.commit(gone)
        case "the folder":
            into = copied(run_dir, tmp_path / "copy")
            with store_of(run_dir) as store:
                store.erase_row(ROW)
            trimmed(run_dir)
            done("backup", "create", backups, "--run-dir", run_dir)
            trimmed(into)
        case "the backup":
            into = copied(run_dir, tmp_path / "copy")
            full = next(each.name for each in backups.iterdir() if each.is_dir())
            with store_of(run_dir) as store:
                store.erase_row(ROW)
            done("backup", "create", backups, "--run-dir", run_dir, "--onto", "latest")
            trimmed(into)
            [increment] = {each.name for each in backups.glob("2*")} - {full}
            backups_of_increment = ("--backup", increment)
    chosen = backups_of_increment if known_to == "the backup" else ("--backup", oldest(backups))
    words = (backups, "--into", into, *chosen)
    for more in (("--dry-run",), ()):
        error = refused("restore", *words, "--row-key", ROW, *more)
        assert isinstance(error, ProtectData)
        assert f"row {ROW} was erased" in str(error)
        told = part(*words, "--shard", SHARD, *more)
        assert told["erased"] == 4
    assert not [
        cell
        for cell in cells_of(into)
        if cell.row_key == ROW.bytes and cell.column_name != "$erased" and len(cell.body) > 1
    ]


def oldest(backups: Path) -> str:
    return json.loads(done("backup", "list", backups, "--json").splitlines()[0])["backup"]  # type: ignore[no-any-return]


def copied(run_dir: Path, to: Path) -> Path:
    """The same history at another place, which goes its own way from here."""
    shutil.copytree(run_dir, to)
    return to


def test_an_erasure_that_is_asked_for_meanwhile_is_not_passed(run_dir: Path, backups: Path) -> None:
    """Between the look at the store and the put, the row is erased: the put itself refuses it."""
    trimmed(run_dir)

    def erase() -> None:
        with store_of(run_dir) as store:
            store.erase_row(ROW)
        clear_failpoints()

    watch_failpoint("restore.part.compared", erase)
    try:
        told = part(backups, "--into", run_dir, "--shard", SHARD)
    finally:
        clear_failpoints()
    assert told["erased"] == 4
    with store_of(run_dir) as store:
        assert store.get_row(ROW) == {}


def test_no_part_is_restored_while_a_later_manifest_or_the_register_is_unreadable(
    run_dir: Path, backups: Path
) -> None:
    first = oldest(backups)
    with store_of(run_dir) as store:
        store.erase_row(row_of(1))
    done("backup", "create", backups, "--run-dir", run_dir)
    trimmed(run_dir)
    before = cells_of(run_dir)
    [later] = [each for each in backups.glob("2*") if each.name != first]
    words = ("restore", backups, "--into", run_dir, "--backup", first, "--shard", SHARD)

    def hurt(path: Path) -> Callable[[], object]:
        content = path.read_bytes()
        path.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
        return lambda: path.write_bytes(content)

    mend = hurt(later / "manifest.json")
    error = refused(*words)
    assert isinstance(error, DataDamaged)
    assert later.name in str(error)
    assert "--readers-ahead" not in str(error)
    mend()
    mends = [hurt(backups / name) for name in ("erasures", "erasures.copy")]
    assert isinstance(error := refused(*words), DataDamaged)
    assert "register of erasures" in str(error)
    mends[0]()
    mend = hurt(backups / first / "manifest.json")
    assert isinstance(refused(*words), DataDamaged)
    mend()
    mend = hurt(backups / first / "cells-0000")
    assert "content differs from its SHA-256" in str(refused(*words))
    mend()
    assert cells_of(run_dir) == before
    assert part(*words[1:])["stored"]


def test_a_backup_of_another_history_is_refused_with_both_ids_unless_it_is_named(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    stranger = made(tmp_path / "stranger")
    with store_of(run_dir) as store, store_of(stranger) as other:
        ids = store.history_id, other.history_id
        other.put_new_cells(rides(300, 50))
    words = (backups, "--into", stranger, "--shard", SHARD)
    trimmed(stranger)
    before = cells_of(stranger)
    error = refused("restore", *words)
    assert isinstance(error, ProtectData)
    assert all(each in str(error) for each in (*ids, f"--from-history {ids[0]}"))
    for wrong in (ids[1], NO_HISTORY_ID, "x"):
        assert isinstance(refused("restore", *words, "--from-history", wrong), InvalidRequest)
    assert cells_of(stranger) == before
    assert part(*words, "--from-history", ids[0])["stored"]
    # A second restore of the same backup knows its parent, and not its sibling.
    config = ("--config", run_dir / "config.yaml")
    for name in ("one", "two"):
        done("restore", backups, "--into", tmp_path / name, *config)
    done("backup", "create", tmp_path / "of-one", "--run-dir", tmp_path / "one", *config)
    sibling = ("restore", tmp_path / "of-one", "--into", tmp_path / "two", *config, "--shard", 0)
    assert isinstance(refused(*sibling), ProtectData)
    assert part(backups, "--into", tmp_path / "two", *config, "--shard", SHARD)["same"]


def test_a_part_of_an_encrypted_backup_needs_its_identity_and_knows_its_erasures(
    run_dir: Path, tmp_path: Path
) -> None:
    identity = pyrage.x25519.Identity.generate()
    (key := tmp_path / "key").write_text(f"{identity}\n")
    backups, to = tmp_path / "encrypted", ("--recipient", str(identity.to_public()))
    done("backup", "create", backups, "--run-dir", run_dir, *to)
    into = copied(run_dir, tmp_path / "copy")
    with store_of(run_dir) as store:
        store.erase_row(ROW)
    done("backup", "create", backups, "--run-dir", run_dir, *to)
    lost = trimmed(into)
    words = (backups, "--into", into, "--backup", oldest(backups), "--shard", SHARD)
    assert isinstance(refused("restore", *words), InvalidRequest)
    told = part(*words, "--identity", key)
    assert counts(told) == {"stored": lost - 4, "erased": 4}


def test_a_partial_restore_runs_beside_a_worker_and_not_beside_a_restore_or_a_scrub(
    tmp_path: Path,
) -> None:
    with running(tmp_path, EMBEDDED) as run_dir:
        where = ("--run-dir", str(run_dir))
        assert cellfeed("put", str(ROW), "BASE", "1", '{"n":1}', *where).returncode == 0
        backups = str(tmp_path / "backups")
        assert cellfeed("backup", "create", backups, *where).returncode == 0
        assert cellfeed("put", str(ROW), "BASE", "2", '{"n":2}', *where).returncode == 0
        trim = cellfeed("trim", "--shard", str(SHARD), "--below", "1", *where)
        assert trim.returncode == 0, trim.stderr
        assert cellfeed("get", str(ROW), "BASE", "1", *where).returncode == 1
        restored = cellfeed("restore", backups, "--into", str(run_dir), "--row-key", str(ROW))
        assert restored.returncode == 0, restored.stderr
        got = json.loads(cellfeed("get", str(ROW), "BASE", "1", "--json", *where).stdout)
        assert (got["added_id"], got["body"]) == (2, {"n": 1})
        assert cellfeed("put", str(ROW), "BASE", "3", '{"n":3}', *where).returncode == 0
        assert cellfeed("down", *where).returncode == 0
    with exclusive_lock(run_dir / "store" / "trips", "a test"):
        assert isinstance(
            refused("restore", backups, "--into", run_dir, "--row-key", ROW), StorageUnavailable
        )


@pytest.mark.parametrize("failpoint", ["restore.part.compared", "restore.part.put"])
def test_a_killed_partial_restore_leaves_no_file_and_can_be_run_again(
    failpoint: str, run_dir: Path, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    lost = trimmed(run_dir)

    def names() -> set[Path]:
        found = {path for path in tmp_path.rglob("*") if "-" not in path.suffix}
        return {path for path in found if path.suffix not in (".sqlite3-wal", ".sqlite3-shm")}

    before = names()
    words = (backups, "--into", run_dir, "--shard", SHARD)
    killed(failpoint, "restore", *words)
    assert names() == before
    told = part(*words)
    assert told["stored"] == (lost if failpoint.endswith("compared") else 0)
    assert len(cells_of(run_dir)) == lost + 1


def test_a_damaged_cell_of_the_store_keeps_no_other_one_from_coming_back(
    run_dir: Path, backups: Path
) -> None:
    [kept] = [cell for cell in cells_of(run_dir) if cell.row_key == ROW.bytes][:1]
    lost = trimmed(run_dir)
    with store_of(run_dir) as store:
        body = b'{"n":1}'
        store.put_new_cells([NewCell(ROW.bytes, kept.column_name, kept.ref_key, body)])
        [damaged] = store.engine.scan(SHARD, lost + 1, 10)
    with closing(sqlite3.connect(run_dir / "store" / "trips" / CELLS_FILE)) as connection:
        place = SHARD << 47 | damaged.added_id
        connection.execute("UPDATE cell SET body = x'02ffff' WHERE position = ?", (place,))
        connection.commit()
    told = part(backups, "--into", run_dir, "--shard", SHARD, exit_code=1)
    assert counts(told) == {"stored": lost - 1, "failed": 1}
    [problem] = told["problems"]
    assert problem["error"] == "data_damaged"


def test_options_that_do_not_go_together_and_parts_that_are_not_there_are_refused(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    into = ("restore", backups, "--into", run_dir)
    wrong: list[tuple[type[CellfeedError], tuple[object, ...]]] = [
        (InvalidRequest, ("--row-key", ROW, "--shard", 1)),
        (InvalidRequest, ("--dry-run",)),
        (InvalidRequest, ("--from-history", "x")),
        (InvalidRequest, ("--shard", 1, "--readers-ahead", "raise-epoch")),
        (InvalidRequest, ("--shard", 1, "--above", "7")),
        (InvalidRequest, ("--shard", 1, "--reason", "none")),
        (InvalidRequest, ("--row-key", "nobody")),
        (UnknownShard, ("--shard", SHARDS)),
        (NotFound, ("--row-key", UUID(int=1))),
    ]
    for kind, words in wrong:
        assert isinstance(refused(*into, *words), kind), words
    nowhere = ("restore", backups, "--into", tmp_path / "nowhere", "--shard", 1)
    assert isinstance(refused(*nowhere, "--config", run_dir / "config.yaml"), NotFound)
    assert not (tmp_path / "nowhere").exists()
