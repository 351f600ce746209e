"""Programs that are recorded: each prints a line once what the line names was acknowledged (``python -m tests.durability.programs KIND DIR``)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bridge.backups.kept_state import belongs
from consumers.warehouse.shard_loader import ShardLoader
from consumers.warehouse.table import make_table
from store.backups.create import Source, create
from store.backups.folder import BackupFolder
from store.datastore import Datastore
from store.engines import sqlite_files
from tests.rides import ride, rides
from tests.unit.test_warehouse_shard_loader import SHARD, Log

CELLS = 24
ROWS = range(40)


def say(line: str) -> None:
    """In one write, behind all that came before it."""
    os.write(1, f"{line}\n".encode())


def store(directory: Path) -> None:
    """Puts cells and saves entries, and moves the WAL into the file now and then."""
    sqlite_files._CHECKPOINT_BYTES = 120_000
    with Datastore.open_embedded(directory / "run", "trips", 4) as opened:
        for number in range(CELLS):
            [result] = opened.put_new_cells([ride(number)])
            say(f"cell {number} {result.shard} {result.added_id}")
            if number % 4 == 0:
                assert opened.state.commit({f"entry/{number}": b"%d" % number}) is not None
                say(f"entry {number}")


def warehouse(directory: Path) -> None:
    """Loads a shard in a few commits."""
    make_table(directory / "table", "trips")
    loader = ShardLoader(directory / "table", SHARD)
    for offset, value in Log(ROWS).records:
        assert loader.add(offset, value)
        if offset % 13 == 12:
            assert loader.flush() is not None
            say(f"committed {loader.committed.next_id}")


def backup(directory: Path) -> None:
    """Takes a full backup and an increment of a store that lies elsewhere."""
    source = directory.with_name("source")
    folder = BackupFolder(directory / "backups")
    with Datastore.open_embedded(source, "trips", 4) as opened:
        opened.put_new_cells(rides(0, 40))
        full = create(folder, Source(opened.engine, belongs))
        say(f"backup {full.name}")
        opened.put_new_cells(rides(40, 60))
        say(f"backup {create(folder, Source(opened.engine, belongs), onto=full).name}")


if __name__ == "__main__":
    {"store": store, "warehouse": warehouse, "backup": backup}[sys.argv[1]](Path(sys.argv[2]))
