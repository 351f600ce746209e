"""Archivers of real MariaDB masters in a test, and restores from their archives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.binlogs.archive import BinlogArchive
from cellfeed.store.backups.binlogs.archiver import ArchivedCluster, BinlogArchiver
from cellfeed.store.backups.binlogs.archives import archives_in
from cellfeed.store.backups.create import create
from cellfeed.store.backups.due import Archived
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import NewCell, StoredCell
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from tests.support.cli_commands import done
from tests.support.cluster_steps import put_until_stored
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster
from tests.support.waiting import wait_until


@dataclass
class Archiving:
    """A running archiver and its reports."""

    reports: list[Archived] = field(default_factory=list)

    def await_now(self) -> None:
        """Returns when all that is acknowledged by now is archived."""
        now_us = time.time_ns() // 1000
        wait_until(
            lambda: bool(self.reports) and (self.reports[-1].at_us or 0) > now_us,
            "the binlog is archived",
            timeout_s=60,
        )


@contextmanager
def archiving(
    cluster: TestCluster,
    folder: BackupFolder,
    engine: ClusteredEngine,
    to: Recipients | None = None,
) -> Iterator[Archiving]:
    told, stop = Archiving(), threading.Event()
    archived = ArchivedCluster(cluster.admin, engine.history, folder.place, to)
    archiver = BinlogArchiver(archived, lambda _, each: told.reports.append(each), flush_s=0.1)
    thread = threading.Thread(target=archiver.run, args=(stop,))
    thread.start()
    try:
        told.await_now()
        yield told
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def put(store: Datastore, cells: Sequence[NewCell]) -> None:
    put_until_stored(engine_of(store), list(cells))


def engine_of(store: Datastore) -> ClusteredEngine:
    assert isinstance(store.engine, ClusteredEngine)
    return store.engine


def back_up(
    store: Datastore, folder: BackupFolder, onto: Backup | None = None, to: Recipients | None = None
) -> Backup:
    return create(folder, Source(engine_of(store), belongs), onto=onto, recipients=to)


def archive_of(folder: BackupFolder) -> BinlogArchive:
    [archive] = archives_in(folder.place)
    return archive


def log_of(store: Datastore, shard: int, count: int) -> list[StoredCell]:
    """So many cells, once readers see them."""
    wait_until(lambda: store.heads()[shard].watermark == count, "the cells are shown")
    return store.engine.scan(shard, 0, 5_000)


def restored(folder: BackupFolder, tmp_path: Path, *options: str) -> dict[int, list[StoredCell]]:
    """The logs of an embedded store that the folder was restored into."""
    into = target(tmp_path)
    done("restore", folder.place, "--into", into, "--config", configured(tmp_path), *options)
    engine = SqliteEngine(into / "data" / DATASTORE, DATASTORE, SHARDS)
    try:
        return {shard: engine.scan(shard, 0, 5_000) for shard in range(SHARDS)}
    finally:
        engine.close()


def target(tmp_path: Path) -> Path:
    return tmp_path / f"restored-{len(list(tmp_path.glob('restored-*')))}"


def configured(tmp_path: Path) -> Path:
    path = tmp_path / "restored.yaml"
    path.write_text(f"datastore: {{name: {DATASTORE}, shards: {SHARDS}, directory: data}}\n")
    return path
