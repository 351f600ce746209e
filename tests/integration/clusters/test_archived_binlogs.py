"""Binlogs of real MariaDB masters, archived between two increments, and a restore from them:
acknowledged cells that no increment holds, through kills, promotions, gaps and erasures."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.backups.binlogs.archiver import ArchivedCluster, BinlogArchiver
from cellfeed.store.backups.binlogs.archives import archives_in
from cellfeed.store.backups.binlogs.covered import remove_superfluous, superfluous
from cellfeed.store.backups.due import Archived, Report
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import moment
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import DataDamaged, ProtectData
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from tests.support.archived_binlogs import (
    archive_of,
    archiving,
    back_up,
    configured,
    engine_of,
    log_of,
    put,
    restored,
    target,
)
from tests.support.cli_commands import done, refused
from tests.support.mariadb_cluster import DATASTORE, TestCluster, cells_of_shard
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_acknowledged_cells_outside_every_increment_survive_the_loss_of_the_whole_cluster(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)) as archive:
        put(store, cells_of_shard(1, 1, 20))
        full = back_up(store, folder)
        put(store, cells_of_shard(1, 2, 30))
        back_up(store, folder, full)
        put(store, [*cells_of_shard(1, 3, 40), *cells_of_shard(2, 4, 5)])
        archive.await_now()
        before = {shard: log_of(store, shard, n) for shard, n in enumerate((0, 90, 5, 0))}
        for server in cluster.servers.values():
            server.kill()
    assert restored(folder, tmp_path) == before
    listed = done("backup", "list", folder.path)
    assert "binlogs of cluster c1" in listed
    assert "binlogs" in done("backup", "verify", folder.path)


def test_a_moment_between_the_last_increment_and_the_loss(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)) as archive:
        archive.await_now()  # one that begins behind the backup says nothing of moments
        back_up(store, folder)
        put(store, cells_of_shard(1, 1, 10))
        time.sleep(0.02)
        put(store, cells_of_shard(1, 2, 10))
        archive.await_now()
        log = log_of(store, 1, 20)
    at = moment(log[9].created_at_us).isoformat()
    found = restored(folder, tmp_path, "--at", at)
    assert found[1][:10] == log[:10]
    assert [cell.column_name for cell in found[1][10:]] == ["RESTORED"]
    late = moment(time.time_ns() // 1000 + 60_000_000).isoformat()
    into = target(tmp_path)
    error = refused(
        "restore", folder.path, "--into", into, "--config", configured(tmp_path), "--at", late
    )
    assert "is not covered" in str(error)
    assert not into.exists()


def test_the_archive_continues_on_the_master_of_a_promotion(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)) as archive:
        back_up(store, folder)
        put(store, cells_of_shard(1, 1, 20))
        archive.await_now()
        cluster.servers["a"].kill()
        promote(cluster.admin, give_up=["a"])
        put(store, cells_of_shard(1, 2, 20))
        archive.await_now()
        log = log_of(store, 1, 40)
        assert archive.reports[-1].gap == ""
    assert restored(folder, tmp_path)[1] == log
    servers = {piece.head.server for piece in archive_of(folder).pieces()}
    assert len(servers) == 2


def test_ids_of_a_transaction_that_the_new_master_never_got_belong_to_the_new_masters_cells(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)) as archive:
        back_up(store, folder)
        put(store, cells_of_shard(1, 1, 5))
        old = cluster.servers["a"]
        old.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0")
        for minion in ("b", "c"):
            cluster.servers[minion].sql("STOP SLAVE")
        at = "NOW(6)"
        row = cells_of_shard(1, 9, 1)[0]
        old.sql(
            "BEGIN",
            f"INSERT INTO {DATASTORE}_0001.cell (added_id, row_key, column_name, ref_key, body,"
            f" created_at) VALUES (5, X'{row.row_key.hex()}', 'BASE', 1,"
            f" (SELECT body FROM {DATASTORE}_0001.cell AS c WHERE added_id = 0), {at})",
            f"UPDATE {DATASTORE}_meta.shard_counter SET next_added_id = 6 WHERE shard = 1",
            "COMMIT",
        )
        wait_until(
            lambda: any(piece.head.ends.get(1) == 6 for piece in archive_of(folder).pieces()),
            "the lost transaction is archived",
        )
        old.kill()
        promote(cluster.admin, give_up=["a"])
        put(store, cells_of_shard(1, 2, 7))
        archive.await_now()
        log = log_of(store, 1, 12)
        assert archive.reports[-1].gap == ""
    assert row.row_key not in {cell.row_key for cell in log}
    assert restored(folder, tmp_path)[1] == log


def test_a_binlog_that_was_purged_is_a_gap_that_is_named_and_that_the_next_increment_closes(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)):
        full = back_up(store, folder)
        put(store, cells_of_shard(1, 1, 5))
    put(store, cells_of_shard(1, 2, 5))
    master = cluster.servers["a"]
    master.sql("FLUSH BINARY LOGS")
    last = master.sql("SHOW BINARY LOGS")[-1][0]
    wait_until(
        lambda: _purged(cluster, str(last)), "the minions have it, and the master may purge it"
    )
    with archiving(cluster, folder, engine_of(store)) as archive:
        assert "purged" in archive.reports[-1].gap
        gap = archive.reports[-1]
        put(store, cells_of_shard(1, 3, 5))
        archive.await_now()
        into = target(tmp_path)
        error = refused("restore", folder.path, "--into", into, "--config", configured(tmp_path))
        assert isinstance(error, ProtectData)
        assert "the archive behind a gap" in str(error)
        assert Report("x", full.manifest.created_at_us, binlogs={"c1": gap}).recovery_us == (
            full.manifest.created_at_us
        )
        back_up(store, folder, full)
        put(store, cells_of_shard(1, 4, 5))
        archive.await_now()
        log = log_of(store, 1, 20)
    assert restored(folder, tmp_path)[1] == log


def _purged(cluster: TestCluster, to: str) -> bool:
    master = cluster.servers["a"]
    master.sql(f"PURGE BINARY LOGS TO '{to}'")
    return bool(master.sql("SHOW BINARY LOGS")[0][0] == to)


def test_an_erased_row_is_not_restored_from_the_archive(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    cells = cells_of_shard(1, 1, 10)
    with archiving(cluster, folder, engine_of(store)) as archive:
        put(store, cells[:5])
        full = back_up(store, folder)
        put(store, cells[5:])
        archive.await_now()
        for cell in (cells[2], cells[7]):
            store.erase_row(UUID(bytes=cell.row_key))
        archive.await_now()
        found = restored(folder, tmp_path)[1]
        older = restored(folder, tmp_path, "--backup", full.name, "--readers-ahead", "raise-epoch")[
            1
        ]
        second = back_up(store, folder, full)
        # A busy archiver may have ended a piece before the first backup: that one may go.
        needed = [
            piece.head.number
            for piece in archive_of(folder).pieces()
            if any(
                each.cell.row_key in {cell.row_key for cell in cells[5:]}
                for transaction in piece.transactions(None, "")
                for each in transaction.cells
            )
        ]
        assert needed
        assert not {number for each in superfluous(folder) for number in each.numbers} & set(
            needed
        ), "one whole backup is not enough"
        back_up(store, folder, second)
        with folder.locked():
            remove_superfluous(superfluous(folder))
        left = archive_of(folder)
        bodies = [
            each.cell
            for piece in left.pieces()
            for transaction in piece.transactions(None, "")
            for each in transaction.cells
            if each.cell.row_key == cells[7].row_key and each.cell.body != ERASED_BODY
        ]
        assert bodies == [], "the body left the archive with the second backup"
    assert [cell.added_id for cell in found if cell.body == ERASED_BODY] == [2, 7, 10, 11]
    assert older[2].body == ERASED_BODY, "its erasure is known to the archive alone"


def test_a_damaged_or_missing_piece_is_found_by_verify_and_refused_by_a_restore(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)) as archive:
        back_up(store, folder)
        for first in range(1, 4):
            put(store, cells_of_shard(1, first, 3))
            archive.await_now()
    numbers = archive_of(folder).numbers()
    path = archive_of(folder).place
    middle = Path(str(path)) / f"piece-{numbers[1]:012d}"
    content = middle.read_bytes()
    words = "restore", folder.path, "--into", target(tmp_path), "--config", configured(tmp_path)
    for position in (3, len(content) - 40):
        damaged = bytearray(content)
        damaged[position] ^= 1
        middle.write_bytes(damaged)
        assert "is damaged" in str(refused(*words))
        assert isinstance(refused("backup", "verify", folder.path), DataDamaged)
    middle.unlink()
    assert f"piece {numbers[1]} is missing" in str(refused(*words))
    middle.write_bytes(content)
    last = Path(str(path)) / f"piece-{numbers[-1]:012d}"
    rest = last.read_bytes()
    last.unlink()
    assert f"piece {numbers[-1]} is missing" in str(refused(*words))
    last.write_bytes(rest)
    assert len(restored(folder, tmp_path)[1]) == 9


def test_pieces_of_another_archive_and_servers_of_another_history_are_refused(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)) as archive:
        back_up(store, folder)
        put(store, cells_of_shard(1, 1, 3))
        archive.await_now()
    own = archive_of(folder)
    other = BackupFolder(tmp_path / "other")
    with archiving(cluster, other, engine_of(store)) as archive:
        put(store, cells_of_shard(1, 2, 3))
        archive.await_now()
    foreign = archive_of(other)
    name = f"piece-{foreign.numbers()[0]:012d}"
    there = Path(str(own.place)) / f"piece-{own.numbers()[-1] + 1:012d}"
    there.write_bytes((Path(str(foreign.place)) / name).read_bytes())
    error = refused(
        "restore", folder.path, "--into", target(tmp_path), "--config", configured(tmp_path)
    )
    assert own.marker.archive_id in str(error)
    assert foreign.marker.archive_id in str(error)
    there.unlink()
    told = list[Archived]()
    history = engine_of(store).history
    theirs = ArchivedCluster(cluster.admin, type(history)("f" * 32, "", "f" * 32), other.place)
    stop = threading.Event()
    thread = threading.Thread(
        target=BinlogArchiver(theirs, lambda _, each: told.append(each)).run, args=(stop,)
    )
    thread.start()
    wait_until(lambda: bool(told) and bool(told[-1].error), "the history is refused")
    stop.set()
    thread.join(30)
    assert "f" * 32 in told[-1].error
    assert history.history_id in told[-1].error


def test_an_encrypted_archive_has_no_plain_text(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    import pyrage

    identity = pyrage.x25519.Identity.generate()
    to = Recipients([str(identity.to_public())])
    key = tmp_path / "key.txt"
    key.write_text(f"{identity}\n")
    cells = cells_of_shard(1, 1, 6)
    with archiving(cluster, folder, engine_of(store), to) as archive:
        back_up(store, folder, to=to)
        put(store, cells)
        archive.await_now()
        log = log_of(store, 1, 6)
    content = b"".join(each.read_bytes() for each in Path(str(archive_of(folder).place)).iterdir())
    assert all(cell.row_key not in content for cell in cells)
    into = target(tmp_path)
    words = "restore", folder.path, "--into", into, "--config", configured(tmp_path)
    assert "--identity" in str(refused(*words))
    assert restored(folder, tmp_path, "--identity", str(key))[1] == log
    assert "complete" in done("backup", "verify", folder.path)
    assert "whole" in done("backup", "verify", folder.path, "--identity", key)


@pytest.mark.parametrize("name", ["binlogs.after_piece", "binlogs.after_reached"])
def test_a_killed_archiver_continues_where_its_archive_ends(
    name: str, cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)):
        back_up(store, folder)
    archived = ArchivedCluster(cluster.admin, engine_of(store).history, folder.place)
    put(store, cells_of_shard(1, 1, 5))
    set_failpoint(name, "raise")
    with pytest.raises(FailpointReached):
        BinlogArchiver(archived, lambda *_: None, flush_s=0.1).run(threading.Event())
    put(store, cells_of_shard(1, 2, 5))
    with archiving(cluster, folder, engine_of(store)) as archive:
        put(store, cells_of_shard(1, 3, 5))
        archive.await_now()
        log = log_of(store, 1, 15)
        assert archive.reports[-1].gap == ""
    assert restored(folder, tmp_path)[1] == log


def test_a_folder_without_a_marker_is_left_alone(
    cluster: TestCluster, store: Datastore, folder: BackupFolder
) -> None:
    with archiving(cluster, folder, engine_of(store)):
        back_up(store, folder)
    place = Path(str(archive_of(folder).place))
    (place / "notes.txt").write_text("mine")
    archive_of(folder).remove_all()
    assert [each.name for each in place.iterdir()] == ["notes.txt"]
    assert archives_in(folder.place) == []
