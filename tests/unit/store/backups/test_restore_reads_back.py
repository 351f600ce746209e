"""A restore opens nothing that it has not read back: every piece of every log, from the first to
the last; and a backup's state comes before its heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.backups.verify import verify
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import DataDamaged
from tests.support.rides import rides

SHARDS = 4
NOW_US = 1_800_000_000_000_000


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 200))
        yield store


@pytest.fixture
def backup(source: Datastore, tmp_path: Path) -> Backup:
    return create(BackupFolder(tmp_path / "backups"), Source(source.engine, belongs))


class ForgetfulTarget(SqliteTarget):
    """Storage that writes one body other than the one it was given: that of the last cell of
    ``shard``, of the same length as far as counts go."""

    shard = 0

    def load(self, shard: int, cells: Sequence[StoredCell]) -> None:
        if shard == self.shard:
            cells = [*cells[:-1], cells[-1]._replace(body=encode_body(b'{"not":"it"}'))]
        super().load(shard, cells)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_restored_store_with_a_wrong_body_in_any_log_is_not_opened(
    backup: Backup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    monkeypatch.setattr(ForgetfulTarget, "shard", shard)
    made = plan([backup], restored(read_state(backup), NOW_US), (), {}, NOW_US, "a test")
    place = tmp_path / "restored" / "trips"
    with (
        ForgetfulTarget(place, "trips", SHARDS) as target,
        pytest.raises(DataDamaged, match=f"shard {shard}: the storage holds"),
    ):
        restore(made, target)
    assert not place.exists()


def test_every_piece_of_an_increment_is_read_back_too(
    source: Datastore, backup: Backup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put_new_cells(rides(200, 300))
    folder = BackupFolder(tmp_path / "backups")
    second = create(folder, Source(source.engine, belongs), onto=backup)
    made = plan(folder.chain(second), [], (), {}, NOW_US, "a test")
    monkeypatch.setattr(ForgetfulTarget, "shard", SHARDS - 1)
    place = tmp_path / "restored" / "trips"
    with ForgetfulTarget(place, "trips", SHARDS) as target, pytest.raises(DataDamaged):
        restore(made, target)
    assert not place.exists()


class LateState:
    """An engine beside which an offset is saved, and the cell that it speaks of is put, the moment
    after its heads were looked at."""

    def __init__(self, store: Datastore) -> None:
        self._store = store

    def heads(self) -> dict[int, Head]:
        found = self._store.engine.heads()
        self._store.put_new_cells(rides(500, 501))
        self._store.state.commit({"offsets/g/trips/0": b"late"})
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.engine, name)


def test_no_state_is_newer_than_the_heads_of_its_backup(source: Datastore, tmp_path: Path) -> None:
    made = create(
        BackupFolder(tmp_path / "late"),
        Source(cast("Engine", LateState(source)), lambda _entry: True),
    )
    assert source.state.get("offsets/g/trips/0") is not None
    assert "offsets/g/trips/0" not in dict(read_state(made))


def test_a_cell_count_that_fits_does_not_hide_another_digest(backup: Backup) -> None:
    [first, *others] = backup.manifest.segments
    manifest = msgspec.structs.replace(
        backup.manifest, segments=[msgspec.structs.replace(first, digest="0" * 64), *others]
    )
    assert verify([Backup(backup.place, manifest, backup.sha256)])


def test_a_chain_that_lacks_a_piece_is_not_restored(backup: Backup) -> None:
    [first, *others] = backup.manifest.segments
    for segments in (others, [msgspec.structs.replace(first, from_id=1), *others]):
        lacking = Backup(
            backup.place, msgspec.structs.replace(backup.manifest, segments=segments), backup.sha256
        )
        with pytest.raises(DataDamaged, match=f"shard {first.shard} lacks cells"):
            plan([lacking], [], (), {}, NOW_US, "a test")
