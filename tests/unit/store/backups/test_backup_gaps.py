"""Damage in a store is no backup's secret: ids that are missing, and bodies that do not decode, are
named by shard and id, and end with exit code 1."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups import check, log_writer
from cellfeed.store.backups import verify as backup_verify
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.create import create
from cellfeed.store.backups.ends import acknowledged_heads
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import Triple
from cellfeed.store.cells.log_gaps import GapCheck
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head, LocatedCell, Replica
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import DataDamaged, StorageUnavailable
from cellfeed.store.limits import ADDED_ID_MAX
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from tests.support.rides import rides

SHARDS = 2


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 200))
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def backed_up(store: Datastore, folder: BackupFolder, onto: Backup | None = None) -> Backup:
    return create(folder, Source(store.engine, belongs), onto=onto)


@pytest.fixture(autouse=True)
def _blind_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine finds lost cells by itself (``test_sqlite_damage.py``); here it does not, so a
    backup has to."""
    monkeypatch.setattr("cellfeed.store.engines.sqlite.log.refuse_gap", lambda *_, **__: None)


def change(tmp_path: Path, sql: str, *values: object) -> None:
    """Behind the store's back, as a disk or a hand does it."""
    with (
        closing(sqlite3.connect(tmp_path / "source" / "trips" / CELLS_FILE)) as connection,
        connection,
    ):
        assert connection.execute(sql, values).rowcount > 0


def lose(tmp_path: Path, shard: int, first: int, last: int) -> None:
    change(
        tmp_path,
        "DELETE FROM cell WHERE rowid BETWEEN ? AND ?",
        position_of(shard, first),
        position_of(shard, last),
    )


@pytest.mark.parametrize(("first", "last"), [(40, 44), (0, 0), (-1, -1)])
def test_cells_that_are_missing_end_a_backup_with_shard_and_ids(
    source: Datastore, folder: BackupFolder, tmp_path: Path, first: int, last: int
) -> None:
    base = backed_up(source, folder)
    end = source.heads()[1].watermark
    first, last = first % end, last % end
    lose(tmp_path, 1, first, last)
    with pytest.raises(DataDamaged, match=f"shard 1 lacks cells {first} to {last}") as told:
        backed_up(source, folder)
    assert told.value.exit_code == 1
    assert [each.name for each in folder.look()[0]] == [base.name]
    assert folder.look()[1] == [], "nothing is left of the one that failed"


def test_a_gap_in_an_increment_ends_its_use(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    base = backed_up(source, folder)
    end = source.heads()[0].watermark
    source.put_new_cells(rides(200, 60))
    lose(tmp_path, 0, end + 2, end + 3)
    with pytest.raises(DataDamaged, match=f"shard 0 lacks cells {end + 2} to {end + 3}"):
        backed_up(source, folder, base)


def test_a_backup_of_an_earlier_version_that_hides_a_gap_is_found_by_verify_and_by_a_restore(
    source: Datastore, folder: BackupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(tmp_path, 1, 40, 44)
    with monkeypatch.context() as patched:
        patched.setattr(log_writer, "GapCheck", _Blind)
        patched.setattr(check, "GapCheck", _Blind)
        backup = backed_up(source, folder)
        assert backup_verify.verify([backup]) == [], "lengths, checksums and digests show nothing"
    [line] = backup_verify.verify([backup])
    assert f"{backup.name}/cells-0000: shard 1 lacks cells 40 to 44" in line
    made = plan([backup], [], [], {}, 0, "a test")
    with (
        SqliteTarget(tmp_path / "new" / "trips", "trips", SHARDS) as target,
        pytest.raises(DataDamaged, match="shard 1 lacks cells 40 to 44"),
    ):
        restore(made, target)
    assert not (tmp_path / "new" / "trips").exists()


class _Blind(GapCheck):
    def add(self, added_id: int, column_name: str, body_json: bytes) -> None:
        pass

    def end(self, below_id: int) -> None:
        pass


def test_verify_names_every_gap_of_the_store(source: Datastore, tmp_path: Path) -> None:
    assert verify([StorePlace(source)]).whole
    lose(tmp_path, 1, 40, 44)
    lose(tmp_path, 1, 60, 60)
    report = verify([StorePlace(source)])
    assert report.equal, "with one place nothing differs"
    assert not report.whole
    assert {verdict.shard: verdict.missing for verdict in report.shards} == {
        0: [],
        1: [range(40, 45), range(60, 61)],
    }
    assert report.as_json()["shards"][1]["missing"] == [
        {"from": 40, "to": 44},
        {"from": 60, "to": 60},
    ]


def test_a_body_that_does_not_decode_is_named_by_shard_and_id(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    change(
        tmp_path, "UPDATE cell SET body = x'02ffff', crc = NULL WHERE rowid = ?", position_of(1, 17)
    )
    with pytest.raises(
        DataDamaged,
        match=r"shard 1, added_id 17 \(row .* column 'BASE'.*does not decode.*earlier backup",
    ):
        backed_up(source, folder)


def test_a_good_copy_of_the_master_replaces_a_rotten_one(
    source: Datastore, folder: BackupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [good] = source.engine.scan(1, 17, 1)
    change(
        tmp_path, "UPDATE cell SET body = x'02ffff', crc = NULL WHERE rowid = ?", position_of(1, 17)
    )
    asked: list[Replica] = []

    def get(
        triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        asked.append(read_from)
        return [
            LocatedCell(
                1, good if read_from is Replica.MINION else good._replace(body=b"\x02rotten")
            )
            for _ in triples
        ]

    monkeypatch.setattr(source.engine, "get", get)
    backup = backed_up(source, folder)
    assert asked == [Replica.MASTER, Replica.MINION]
    assert backup_verify.verify([backup]) == []
    [segment] = [each for each in backup.manifest.segments if each.shard == 1]
    assert [cell for cells in check.read_segment(backup, segment) for cell in cells][17] == good


# --- what is acknowledged, and not shown yet ------------------------------------------------------


class _Heads:
    """An engine that tells one head of shard 0 after the other; the last one for ever."""

    def __init__(self, *told: tuple[int, int, int]) -> None:
        self.told = [Head(0, watermark, next_id, epoch, 0) for watermark, next_id, epoch in told]

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        head = self.told[0]
        known = head.next_added_id != ADDED_ID_MAX
        return {0: (head.leader_epoch, head.next_added_id)} if known else {}

    def heads(self) -> dict[int, Head]:
        return {0: self.told.pop(0) if len(self.told) > 1 else self.told[0]}


def waited(monkeypatch: pytest.MonkeyPatch, *told: tuple[int, int, int]) -> Head:
    monkeypatch.setattr("cellfeed.store.backups.ends.WAIT_S", 0.2)
    monkeypatch.setattr("cellfeed.store.backups.ends._LOOK_EVERY_S", 0.001)
    return acknowledged_heads(_Heads(*told))[0]  # type: ignore[arg-type]


def test_a_backup_waits_for_acknowledged_cells_and_for_no_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert waited(monkeypatch, (50, 50, 1)).watermark == 50
    assert waited(monkeypatch, (50, 60, 1), (55, 70, 1), (60, 80, 1), (80, 80, 1)).watermark == 60
    assert waited(monkeypatch, (50, ADDED_ID_MAX, 1), (50, 60, 1), (60, 60, 1)).watermark == 60
    # A promotion discards cells that were never acknowledged: the new master's word counts.
    assert (
        waited(monkeypatch, (50, 60, 1), (50, ADDED_ID_MAX, 1), (50, 55, 2), (55, 55, 2)).watermark
        == 55
    )


def test_a_backup_waits_while_a_promotion_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Iterator[StorageUnavailable | dict[int, Head]] = iter(
        [StorageUnavailable("no node that follows a answers"), {0: Head(0, 7, 7, 2, 0)}]
    )

    class Promoted(_Heads):
        def heads(self) -> dict[int, Head]:
            each = next(told)
            if isinstance(each, dict):
                return each
            raise each

    monkeypatch.setattr("cellfeed.store.backups.ends._LOOK_EVERY_S", 0.001)
    assert acknowledged_heads(Promoted((0, 7, 2)))[0].watermark == 7  # type: ignore[arg-type]


def test_a_backup_names_the_node_that_does_not_catch_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        StorageUnavailable, match=r"shard 0 from 50 to 59.*cellfeed cluster status"
    ) as told:
        waited(monkeypatch, (50, 60, 1))
    assert told.value.exit_code == 1
    with pytest.raises(StorageUnavailable, match=r"shard 0 from 50 on \(no master answers\)"):
        waited(monkeypatch, (50, ADDED_ID_MAX, 1))
