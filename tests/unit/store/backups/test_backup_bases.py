"""An increment and its base: the store must be the one of the base. A backup and its dictionaries:
it has each that its bodies name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.base import check_same_store
from cellfeed.store.backups.check import chain_dictionaries, read_segment
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.cells.body_codec import decode_body, dictionaries_named
from cellfeed.store.cells.body_encoding import encode_with
from cellfeed.store.cells.known_dictionaries import KnownDictionary
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint
from tests.support.backups_made import SHARDS, backed_up, trained_dictionary
from tests.support.rides import rides


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as opened:
        opened.put_new_cells(rides(0, 100))
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def compare(store: Datastore, base: Backup, first_of_later_epoch: int) -> None:
    """With a later leader epoch in shard 0 that began at this id."""
    epochs = {log.shard: list(log.epochs) for log in base.manifest.logs}
    epochs[0].append((9, first_of_later_epoch))
    check_same_store(store.engine, [base], epochs, store.heads())


def test_a_log_whose_later_epoch_began_below_the_bases_end_is_another_one(
    store: Datastore, folder: BackupFolder
) -> None:
    """A promotion has given ids to other cells that the base has."""
    base = backed_up(store, folder)
    end = base.manifest.logs[0].watermark
    compare(store, base, end)
    with pytest.raises(ProtectData, match="shard 0 is not the log that backup"):
        compare(store, base, end - 1)


def test_a_backup_has_the_dictionary_that_a_body_was_rewritten_with_meanwhile(
    store: Datastore, folder: BackupFolder
) -> None:
    dictionary, engine = trained_dictionary(), store.engine
    assert isinstance(engine, SqliteEngine)

    def rewrite() -> None:
        unwatch_failpoint("backup.after_log")
        engine.dictionaries.add(dictionary)
        engine.dictionaries.use(dictionary, 0)
        for shard in range(SHARDS):
            cells = engine.scan(shard, 0, 1_000)
            bodies = encode_with(
                KnownDictionary(dictionary), [decode_body(cell.body) for cell in cells]
            )
            engine.replace_bodies(shard, list(zip(cells, bodies, strict=True)))

    watch_failpoint("backup.after_log", rewrite)
    backup = backed_up(store, folder)
    assert chain_dictionaries([backup]) == [dictionary]
    assert any(
        dictionaries_named(cell.body for cell in cells) == {dictionary.dictionary_id}
        for segment in backup.manifest.segments
        for cells in read_segment(backup, segment)
    )
