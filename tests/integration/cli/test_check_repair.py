"""`cellfeed check --repair` puts verified copies in the place of damaged cells, reports the cells
that it replaced, and otherwise changes nothing."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from cellfeed.cli.main import command_line
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.body_codec import forget_dictionaries, is_erased
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.retiring import retire
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from tests.integration.cli.test_check import at, check, place, places_of, run
from tests.support.rides import rides

SHARDS = 4
CELLS = rides(0, 600)
Log = dict[int, list[tuple[Any, ...]]]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("datastore: {shards: 4}\nworkers: [{port: 0}]\n")
    with Datastore.open_embedded(tmp_path / "store", "trips", SHARDS) as store:
        store.put_new_cells(CELLS)
    return tmp_path


def logs(run_dir: Path) -> Log:
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        return {
            shard: [
                tuple(cell)
                for cell in store.engine.scan(shard, store.heads()[shard].log_start, 10_000)
            ]
            for shard in range(SHARDS)
        }


def back_up(run_dir: Path, name: str = "backups") -> Path:
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        create(BackupFolder(run_dir / name), Source(store.engine, lambda _: True))
    return run_dir / name


def content(run_dir: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(place(run_dir) / CELLS_FILE)) as connection:
        return connection.execute("SELECT * FROM cell ORDER BY position").fetchall()


def hurt(run_dir: Path) -> None:
    run(
        run_dir,
        f"UPDATE cell SET body = x'04' WHERE {at(2, 5)}",
        f"UPDATE cell SET row_key = zeroblob(16) WHERE {at(0, 9)}",
        f"DELETE FROM cell WHERE position BETWEEN {position_of(1, 40)} AND {position_of(1, 44)}",
    )


def test_damaged_and_lost_cells_are_restored_unchanged_from_a_backup(run_dir: Path) -> None:
    before, backups = logs(run_dir), back_up(run_dir)
    hurt(run_dir)
    code, found = check(run_dir, "--repair", "--backups", str(backups))
    assert (code, found[-1]["well"], found[-1]["findings"]) == (0, True, 3)
    told = {each["mended"] for each in found[:-1]}
    assert {line.split(" by the copy of ")[0] for line in told} == {
        "shard 2: replaced added_id 5",
        "shard 0: replaced added_id 9",
        "shard 1: replaced added_ids 40 to 44",
    }
    assert logs(run_dir) == before
    assert check(run_dir)[0] == 0


def test_a_copy_from_before_a_dictionary_was_retired_can_be_read(run_dir: Path) -> None:
    samples = [Sample(cell.row_key, cell.body_json) for cell in CELLS]
    dictionary = train("BASE", samples).dictionary
    later = rides(600, 40)
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        publish(store.engine.dictionaries, dictionary, 0)
        [first, *_] = store.put_new_cells(later)
    backups = back_up(run_dir)
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        assert isinstance(store.engine, SqliteEngine)
        assert retire(store.engine, dictionary.dictionary_id, readers_s=0).rewritten == len(later)
    assert first.shard is not None
    assert first.added_id is not None
    run(run_dir, f"UPDATE cell SET body = x'04' WHERE {at(first.shard, first.added_id)}")
    code, found = check(run_dir, "--repair", "--backups", str(backups))
    assert (code, found[-1]["findings"]) == (0, 1)
    forget_dictionaries()
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        cell = store.get_cell(UUID(bytes=later[0].row_key), "BASE", 1)
        assert cell is not None
        assert cell.body_json == later[0].body_json


def test_without_a_good_copy_no_cell_is_changed_and_shard_and_id_are_named(run_dir: Path) -> None:
    hurt(run_dir)
    damaged = content(run_dir)
    code, found = check(run_dir, "--repair")
    assert (code, len(found)) == (1, 4)
    assert all(
        "not mended, nothing changed" in each["text"] and "mended" not in each
        for each in found[:-1]
    )
    assert {(each["shard"], each["from"]) for each in found[:-1]} == {(2, 5), (0, 9), (1, 40)}
    assert content(run_dir) == damaged


def test_a_backup_of_another_history_and_a_damaged_one_are_no_good_copies(
    run_dir: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with Datastore.open_embedded(other / "store", "trips", SHARDS) as store:
        store.put_new_cells(CELLS)
    foreign, own = back_up(other), back_up(run_dir)
    hurt(run_dir)
    damaged = content(run_dir)
    assert check(run_dir, "--repair", "--backups", str(foreign))[0] == 1
    assert content(run_dir) == damaged
    [cells] = own.glob("*/cells-0000")
    whole = cells.read_bytes()
    cells.write_bytes(whole[:900] + bytes([whole[900] ^ 1]) + whole[901:])
    assert check(run_dir, "--repair", "--backups", str(own))[0] == 1
    assert content(run_dir) == damaged


def test_a_cell_of_a_row_erased_since_is_restored_without_its_body(run_dir: Path) -> None:
    backups = back_up(run_dir)
    row_key = next(cell[1] for cell in logs(run_dir)[2] if cell[0] == 5)
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        store.erase_row(UUID(bytes=row_key))
    before = logs(run_dir)
    run(run_dir, f"DELETE FROM cell WHERE {at(2, 5)}")
    assert check(run_dir, "--repair", "--backups", str(backups))[0] == 0
    assert is_erased(logs(run_dir)[2][5][5])
    assert logs(run_dir) == before
    # The entry that reports the erasure is lost as well: the register beside the backups knows of
    # it.
    older = {each.name for each in backups.iterdir()}
    back_up(run_dir)
    for newer in {each.name for each in backups.iterdir() if each.is_dir()} - older:
        shutil.rmtree(backups / newer)
    end = len(before[2]) - 1
    run(run_dir, f"DELETE FROM cell WHERE {at(2, 5)}", f"DELETE FROM cell WHERE {at(2, end)}")
    code, found = check(run_dir, "--repair", "--backups", str(backups))
    assert (code, [each["from"] for each in found[:-1] if "mended" not in each]) == (1, [end]), (
        found
    )
    with closing(sqlite3.connect(place(run_dir) / CELLS_FILE)) as connection:
        [(body,)] = connection.execute(f"SELECT body FROM cell WHERE {at(2, 5)}").fetchall()
    assert is_erased(body)


def test_an_index_of_keys_with_a_flipped_bit_is_built_again_from_the_cells(run_dir: Path) -> None:
    before, backups = logs(run_dir), back_up(run_dir)
    data, places = places_of(run_dir, CELLS[77].row_key)
    for offset in places:
        (place(run_dir) / CELLS_FILE).write_bytes(
            data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
        )
        code, found = check(run_dir, "--repair", "--backups", str(backups), "--no-indexes")
        assert code == 0, found
        assert any(
            each["mended"] == "the index of keys was built again from the cells"
            for each in found[:-1]
        )
        assert logs(run_dir) == before
        with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
            assert all(store.engine.get([cell.triple for cell in CELLS]))
        with closing(sqlite3.connect(place(run_dir) / CELLS_FILE)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def test_backups_without_repair_is_used_wrongly(run_dir: Path) -> None:
    done = CliRunner().invoke(
        command_line("check"), ["check", "--backups", str(run_dir), "--run-dir", str(run_dir)]
    )
    assert "give both, or none" in str(done.exception)
