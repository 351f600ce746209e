"""Backups, cells a second: of an embedded datastore beside SQLite's own online copy of the file, of
a MariaDB server beside ``mariadb-dump``.

``CELLS`` taxi cells in 16 shards, bodies with a dictionary, nobody else at work. A backup decodes
and digests every body; the peers copy pages, or write SQL, and check nothing. Runs are interleaved;
the figures are medians. ``bytes a cell`` are those of the backup beside those of the SQLite file.
"""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks import Figure
from benchmarks._backups import backed_up, clustered, dump, embedded, folder, measured
from benchmarks._mariadb import mariadb
from cellfeed.store.backups.backup import Backup
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE

CELLS = 100_000
RUNS = 5


def figures(cells: int = CELLS, runs: int = RUNS, *, with_mariadb: bool = True) -> Iterator[Figure]:
    """Measures; see the module."""
    with folder() as directory, embedded(directory / "store", cells) as store:
        file = directory / "store" / "trips" / CELLS_FILE
        ours, peer = list[float](), list[float]()
        for run in range(runs):
            backup = partial(_backup, store, directory / f"backup-{run}", cells)
            ours.append(cells / measured(backup))
            peer.append(cells / measured(partial(_copy, file, directory / f"copy-{run}")))
        yield Figure(
            "backup embedded",
            statistics.median(ours),
            "cells/s",
            "SQLite's online copy of the file",
            statistics.median(peer),
        )
        size = backed_up(store, directory / "sized").manifest.bytes
        yield Figure(
            "backup bytes a cell",
            size / cells,
            "bytes",
            "the SQLite file",
            (directory / "copy-0").stat().st_size / cells,
        )
    if not with_mariadb:
        return
    with folder() as directory, mariadb() as server, clustered(server, cells) as store:
        ours, peer = [], []
        for run in range(runs):
            backup = partial(_backup, store, directory / f"backup-{run}", cells)
            ours.append(cells / measured(backup))
            peer.append(cells / measured(lambda: dump(server, directory / "dump.sql")))
        yield Figure(
            "backup MariaDB",
            statistics.median(ours),
            "cells/s",
            "mariadb-dump",
            statistics.median(peer),
        )


def _backup(store: Datastore, directory: Path, cells: int) -> Backup:
    made = backed_up(store, directory)
    if made.manifest.cells != cells:
        raise RuntimeError(f"{made.manifest.cells} of {cells} cells were backed up")
    return made


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(target)) as writing:
        reading.backup(writing)
