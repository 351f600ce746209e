"""cellfeed verify on a store whose log lacks cells, and a restore beside a later backup, from the
command line: its exit codes, and the places that it names."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from tests.support.cli_instance import cellfeed, running
from tests.support.rides import rides

pytestmark = pytest.mark.integration

NAMED = "shard 2 lacks cells 10 to 14, 20 to 20, 33 to 34"
CONFIG = "datastore: {shards: 4}\nworkers: [{port: 0}]\n"


def lose(run_dir: Path, shard: int, first: int, last: int) -> None:
    with (
        closing(sqlite3.connect(run_dir / "store" / "trips" / CELLS_FILE)) as connection,
        connection,
    ):
        between = (position_of(shard, first), position_of(shard, last))
        assert (
            connection.execute("DELETE FROM cell WHERE rowid BETWEEN ? AND ?", between).rowcount
            == last + 1 - first
        )


def hurt(run_dir: Path, shard: int, added_id: int) -> None:
    with (
        closing(sqlite3.connect(run_dir / "store" / "trips" / CELLS_FILE)) as connection,
        connection,
    ):
        assert (
            connection.execute(
                "UPDATE cell SET body = x'04' WHERE position = ?", (position_of(shard, added_id),)
            ).rowcount
            == 1
        )


def test_a_log_that_lacks_cells_ends_verify_and_a_backup_with_1(tmp_path: Path) -> None:
    with running(tmp_path, CONFIG) as run_dir:
        with Datastore.open_embedded(run_dir / "store", "trips", 4) as store:
            store.put_new_cells(rides(0, 200))
        assert cellfeed("verify", "--run-dir", str(run_dir)).returncode == 0
        lose(run_dir, 2, 10, 14)
        lose(run_dir, 2, 20, 20)
        lose(run_dir, 2, 33, 34)
        hurt(run_dir, 2, 30)
        told = cellfeed("verify", "--run-dir", str(run_dir))
        assert (told.returncode, NAMED in told.stdout) == (1, True), told.stdout + told.stderr
        assert "shard 2 has damaged cells at added_id 30" in told.stdout
        [shard] = [
            each
            for each in json.loads(cellfeed("verify", "--json", "--run-dir", str(run_dir)).stdout)[
                "shards"
            ]
            if each["shard"] == 2
        ]
        assert [(each["from"], each["to"]) for each in shard["missing"]] == [
            (10, 14),
            (20, 20),
            (33, 34),
        ]
        assert (shard["damaged"], shard["unread_from"]) == ([{"from": 30, "to": 30}], None)
        backup = cellfeed("backup", "create", str(tmp_path / "backups"), "--run-dir", str(run_dir))
        assert (
            backup.returncode,
            "added_id 30 of shard 2 is damaged" in backup.stderr.replace("\n", " "),
        ) == (1, True), backup.stderr


def test_a_restore_beside_a_newer_backup_exits_with_3_and_names_the_way_above_it(
    tmp_path: Path,
) -> None:
    run_dir, backups = tmp_path / "run", str(tmp_path / "backups")
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(CONFIG)
    names = []
    for first in (0, 100):
        with Datastore.open_embedded(run_dir / "store", "trips", 4) as store:
            store.put_new_cells(rides(first, 100))
            ends = {shard: head.watermark for shard, head in store.heads().items()}
        names.append(
            json.loads(
                cellfeed("backup", "create", backups, "--run-dir", str(run_dir), "--json").stdout
            )["backup"]
        )
    words = (
        "restore",
        backups,
        "--backup",
        names[0],
        "--into",
        str(tmp_path / "new"),
        "--config",
        str(run_dir / "config.yaml"),
    )
    refused = cellfeed(*words)
    assert refused.returncode == 3
    assert f"backup {names[1]} has come" in refused.stderr
    assert not (tmp_path / "new" / "store" / "trips").exists()
    manifest = tmp_path / "backups" / names[1] / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    damaged = cellfeed(*words, "--readers-ahead", "raise-epoch")
    assert (damaged.returncode, "may be a later backup" in damaged.stderr.replace("\n", " ")) == (
        1,
        True,
    )
    manifest.write_bytes(whole)
    assert cellfeed(*words, "--readers-ahead", "raise-epoch").returncode == 0
    with Datastore.open_embedded(tmp_path / "new" / "store", "trips", 4) as store:
        given = [(result.shard, result.added_id) for result in store.put_new_cells(rides(300, 40))]
    assert all(
        added_id is not None and shard is not None and added_id >= ends[shard]
        for shard, added_id in given
    )
