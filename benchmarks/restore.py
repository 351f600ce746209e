"""Restores, cells a second: into an embedded datastore beside ``sqlite3`` inserting the same rows,
into a MariaDB server beside ``mariadb`` loading a dump.

``CELLS`` taxi cells in 16 shards, bodies with a dictionary. A restore checks the backup's files,
loads, reads all of it back and compares the digests before it opens the datastore; the peers check
nothing. Runs are interleaved; the figures are medians.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks import Figure
from benchmarks._backups import (
    SHARDS,
    backed_up,
    clustered,
    dump,
    embedded,
    folder,
    load,
    measured,
    servers_of,
)
from benchmarks._mariadb import mariadb
from cellfeed.bridge.backups.kept_state import restored
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_clusters import ClusterTarget
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.restore import restore as restore_backup
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.restore_target import Target
from cellfeed.store.backups.verify import check_files
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from tests.support import local_mariadb

CELLS = 100_000
RUNS = 3


def figures(cells: int = CELLS, runs: int = RUNS, *, with_mariadb: bool = True) -> Iterator[Figure]:
    """Measures; see the module."""
    with folder() as directory:
        with embedded(directory / "store", cells) as store:
            backup = backed_up(store, directory / "backups")
        file = directory / "store" / "trips" / CELLS_FILE
        ours, peer = list[float](), list[float]()
        for run in range(runs):
            with SqliteTarget(directory / f"restored-{run}" / "trips", "trips", SHARDS) as target:
                ours.append(cells / measured(partial(_restore, backup, target)))
            inserted = directory / f"inserted-{run}"
            peer.append(cells / measured(partial(_insert, file, inserted)))
        yield Figure(
            "restore embedded",
            statistics.median(ours),
            "cells/s",
            "sqlite3 inserting the rows",
            statistics.median(peer),
        )
        if not with_mariadb:
            return
        with mariadb() as server:
            with clustered(server, cells):
                dump(server, directory / "dump.sql")
            ours, peer = [], []
            for _ in range(runs):
                local_mariadb.drop_all_databases(server)
                with ClusterTarget([servers_of(server)], even_map("trips", SHARDS, ["c1"])) as into:
                    ours.append(cells / measured(lambda into=into: _restore(backup, into)))  # type: ignore[misc]
                local_mariadb.drop_all_databases(server)
                peer.append(cells / measured(lambda: load(server, directory / "dump.sql")))
            yield Figure(
                "restore MariaDB",
                statistics.median(ours),
                "cells/s",
                "mariadb loading a dump",
                statistics.median(peer),
            )


def _restore(backup: Backup, target: Target) -> None:
    chain = BackupFolder(backup.path.parent).chain(backup)
    if wrong := check_files(chain):
        raise RuntimeError(wrong[0])
    now_us = time.time_ns() // 1000
    restore_backup(
        plan(chain, restored(read_state(backup), now_us), [], {}, now_us, "measured"), target
    )


def _insert(source: Path, target: Path) -> None:
    """The rows of the cells' table into one like it, as durable as the product's, 5,000 in a
    transaction."""
    with (
        closing(sqlite3.connect(source)) as reading,
        closing(sqlite3.connect(target, isolation_level=None)) as writing,
    ):
        writing.execute("PRAGMA journal_mode=WAL")
        writing.execute("PRAGMA synchronous=FULL")
        [(table,)] = reading.execute("SELECT sql FROM sqlite_schema WHERE name = 'cell'")
        writing.execute(table)
        rows = reading.execute("SELECT * FROM cell ORDER BY position")
        while piece := rows.fetchmany(5_000):
            writing.execute("BEGIN")
            writing.executemany("INSERT INTO cell VALUES (?, ?, ?, ?, ?, ?, ?)", piece)
            writing.execute("COMMIT")
