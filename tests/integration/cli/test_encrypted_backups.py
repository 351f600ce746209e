"""The commands of backups with recipients and identities, as an operator gives them."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pyrage
import pytest

from cellfeed.store.cells.cell import moment
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from tests.support.backup_commands import SHARDS, filled_run_dir, log_of, run
from tests.support.rides import rider, rides, row_of

pytestmark = pytest.mark.integration


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return filled_run_dir(tmp_path)


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def new_key(path: Path) -> str:
    """Its recipient; the identity is in the file."""
    identity = pyrage.x25519.Identity.generate()
    path.write_text(f"# a key\n{identity}\n")
    return str(identity.to_public())


def test_a_backup_with_recipients_is_listed_verified_tried_and_restored(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.key", tmp_path / "second.key"
    listed = tmp_path / "recipients"
    listed.write_text(f"# the safe\n{new_key(second)}\n")
    to = ("--recipient", new_key(first), "--recipients-file", listed)
    code, told = run("backup", "create", backups, "--run-dir", run_dir, *to)
    assert code == 0
    assert "encrypted to age1" in told
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        store.put_new_cells(rides(300, 50))
    increment = ("backup", "create", backups, "--run-dir", run_dir, "--onto", "latest")
    assert run(*increment)[0] == 3
    assert run(*increment, *to)[0] == 0

    code, told = run("backup", "list", backups, "--json")
    assert [len(json.loads(line)["recipients"]) for line in told.splitlines()] == [2, 2]
    assert "yes" in run("backup", "list", backups)[1]
    code, told = run("backup", "verify", backups)
    assert code == 0
    assert "complete: 350 cells; it is encrypted" in told
    assert json.loads(run("backup", "verify", backups, "--json")[1])["decrypted"] is False
    code, told = run("backup", "verify", backups, "--restore", "--tmp-dir", tmp_path)
    assert code == 2
    assert "--identity" in told
    for key in (first, second):
        code, told = run(
            *("backup", "verify", backups, "--identity", key),
            *("--restore", "--tmp-dir", tmp_path, "--json"),
        )
        assert code == 0, told
        found = json.loads(told)
        assert (found["whole"], found["decrypted"], found["restored"]["ids"]) == (True, True, 350)

    into = ("restore", backups, "--into", tmp_path / "new", "--config", run_dir / "config.yaml")
    code, told = run(*into)
    assert code == 2
    assert "--identity" in told
    new_key(tmp_path / "wrong.key")
    code, told = run(*into, "--identity", tmp_path / "wrong.key")
    assert code == 2
    assert "give that of one of the recipients" in told
    assert not (tmp_path / "new" / "store").exists()
    code, told = run(*into, "--identity", second)
    assert code == 0, told
    assert log_of(tmp_path / "new") == log_of(run_dir)
    assert not any(rider(7).encode() in each.read_bytes() for each in backups.rglob("*/*"))


def test_a_repair_takes_good_copies_from_an_encrypted_backup(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    assert (
        run("backup", "create", backups, "--run-dir", run_dir, "--recipient", new_key(key))[0] == 0
    )
    before = log_of(run_dir)
    with closing(sqlite3.connect(run_dir / "store" / "trips" / CELLS_FILE)) as connection:
        connection.execute("UPDATE cell SET body = x'04' WHERE position = ?", (position_of(2, 5),))
        connection.commit()
    repair = ("check", "--run-dir", run_dir, "--no-indexes", "--repair", "--backups", backups)
    code, told = run(*repair)
    assert code == 1
    assert "--identity" in told
    code, told = run(*repair, "--identity", key)
    assert code == 0, told
    assert "shard 2: replaced added_id 5" in told
    assert log_of(run_dir) == before
    assert run("check", "--run-dir", run_dir, "--identity", key)[0] == 2


def test_a_prune_and_an_erasure_between_backups_need_no_identity(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    create = ("backup", "create", backups, "--run-dir", run_dir, "--recipient", new_key(key))
    assert run(*create)[0] == 0
    [old] = [each.name for each in backups.iterdir() if each.is_dir()]
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        store.erase_row(row_of(7))
    assert run(*create)[0] == 0
    code, told = run(
        *("restore", backups, "--into", tmp_path / "new", "--config", run_dir / "config.yaml"),
        *("--backup", old, "--readers-ahead", "raise-epoch", "--identity", key, "--json"),
    )
    assert code == 0, told
    assert json.loads(told)["erased"] == [str(row_of(7))]
    code, told = run("backup", "prune", backups, "--keep", "0")
    assert code == 3, "no newer backup would be left"
    assert run(*create)[0] == 0
    assert not any(
        row_of(7).hex.encode() in each.read_bytes() for each in backups.glob("erasures*")
    )


def test_a_secret_key_in_the_place_of_a_recipient_is_refused_and_not_shown(
    run_dir: Path, backups: Path
) -> None:
    secret = str(pyrage.x25519.Identity.generate())
    code, told = run("backup", "create", backups, "--run-dir", run_dir, "--recipient", secret)
    assert code == 2
    assert "a secret key stands" in told
    assert secret[16:-2] not in told
    assert not backups.exists()


@pytest.mark.parametrize("onto", [(), ("--onto", "latest")])
def test_a_point_in_time_is_restored_from_encrypted_backups(
    run_dir: Path, backups: Path, tmp_path: Path, onto: tuple[str, ...]
) -> None:
    key = tmp_path / "own.key"
    create = ("backup", "create", backups, "--run-dir", run_dir, "--recipient", new_key(key))
    assert run(*create)[0] == 0
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        store.put_new_cells(rides(300, 50))
        time.sleep(0.002)
        at = moment(store.state.now_us()).isoformat()
        wanted = [store.engine.scan(shard, 0, 10_000) for shard in range(SHARDS)]
        time.sleep(0.002)
        store.put_new_cells(rides(350, 50))
    assert run(*create, *onto)[0] == 0
    words = ("restore", backups, "--config", run_dir / "config.yaml", "--at", at)
    into = tmp_path / "new"
    code, told = run(*words, "--into", into)
    assert (code, "identity" in told) == (2, True)
    assert not into.exists()
    code, told = run(*words, "--into", into, "--identity", key, "--json")
    assert (code, json.loads(told)["ids"]) == (0, 350)
    with Datastore.open_embedded(into / "store", "trips", SHARDS) as store:
        found = [store.engine.scan(shard, 0, 10_000) for shard in range(SHARDS)]
    assert [cells[:-1] for cells in found] == wanted  # without the cell that reports the restore
