"""Two restores of one backup, and the answers to Kafka clients that change between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.bridge.gateway.apis.api_23_offset_for_leader_epoch import end_of_epoch
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.epochs import (
    EPOCH_MAX,
    EPOCHS_DRAWN,
    EPOCHS_LEFT_OUT,
    epoch_of_next_history,
)
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.restore_target import Target
from cellfeed.store.backups.taking import Source
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from tests.support.rides import rides

SHARDS = 4
NOW_US = 1_800_000_000_000_000


def test_two_restores_of_one_backup_are_in_leader_epochs_of_their_own(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path / "backups")
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as source:
        source.put_new_cells(rides(0, 100))
        backup = create(folder, Source(source.engine, belongs))
        end = source.heads()[0].watermark
    epochs, ends = [], []
    for name in ("one", "other"):
        made = plan(
            folder.chain(backup), restored(read_state(backup), NOW_US), [], {}, NOW_US, "a test"
        )
        with SqliteTarget(tmp_path / name / "trips", "trips", SHARDS) as target:
            begun: Target = target
            assert begun.begun_epoch(backup) is None
            restore(made, target)
        with Datastore.open_embedded(tmp_path / name, "trips", SHARDS) as store:
            store.put_new_cells(rides(1_000, 100))
            epochs.append(store.engine.leader_epochs(0))
            ends.append(store.heads()[0].watermark)
    # A client that has read cells of one behind the backup asks the other one for the epoch of
    # these cells.
    told = {
        end_of_epoch(epochs[1], epochs[0][-1][0], ends[1]),
        end_of_epoch(epochs[0], epochs[1][-1][0], ends[0]),
    }
    assert told == {(0, end), (-1, -1)}


def test_epochs_after_a_restore_are_above_any_that_a_lost_store_may_have_reached() -> None:
    drawn = [epoch_of_next_history(7) for _ in range(1_000)]
    assert all(7 + EPOCHS_LEFT_OUT <= epoch < 7 + EPOCHS_LEFT_OUT + EPOCHS_DRAWN for epoch in drawn)
    assert len(set(drawn)) > 990


def test_a_restore_without_an_epoch_left_is_refused_with_the_epoch() -> None:
    last = EPOCH_MAX + 1 - EPOCHS_LEFT_OUT - EPOCHS_DRAWN
    assert epoch_of_next_history(last) <= EPOCH_MAX
    with pytest.raises(ProtectData, match=f"leader epoch {last + 1} was seen"):
        epoch_of_next_history(last + 1)


def test_five_hundred_restores_of_restores_have_room() -> None:
    epoch = 0
    for _ in range(511):
        epoch = max(epoch_of_next_history(epoch), epoch + EPOCHS_LEFT_OUT)
    assert EPOCH_MAX // (EPOCHS_LEFT_OUT + EPOCHS_DRAWN) >= 511
    assert epoch <= EPOCH_MAX


def test_cells_that_a_restore_adds_are_no_earlier_than_those_before_them(tmp_path: Path) -> None:
    """By a clock that stands behind the one of the store that was backed up."""
    folder = BackupFolder(tmp_path / "backups")
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as source:
        source.put_new_cells(rides(0, 100))
        backup = create(folder, Source(source.engine, belongs))
    last_us = backup.manifest.logs[0].last_created_at_us
    row, log = bytes(16), backup.manifest.logs[0]
    made = plan(folder.chain(backup), [], [], {0: log.watermark + 5}, 1, "a test", {0: [row]}).logs[
        0
    ]
    assert [cell.created_at_us for cell in made.added] == [last_us, last_us]
    assert made.last_created_at_us == last_us
    assert [cell.added_id for cell in made.added] == [log.watermark + 5, log.watermark + 6]


def test_the_epoch_of_a_restore_is_above_the_highest_that_a_reader_has_seen(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path / "backups")
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as source:
        backup = create(folder, Source(source.engine, belongs))
    seen = 1_000_000_000
    readers = [Reader("a", "trips", 0, 5, seen), Reader("b", "trips", 1, 5)]
    assert plan(folder.chain(backup), [], readers, {}, NOW_US, "a test").epoch > seen
