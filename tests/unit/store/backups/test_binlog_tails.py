"""The cells that archives of binlogs add to the newest increment: which cells count where archives
overlap, disagree or end, which pieces backups have made superfluous, and how old the recovery point
is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.config.model import BackupsConfig, Config
from cellfeed.instance.config_file import check_config
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.binlogs.archive import BinlogArchive
from cellfeed.store.backups.binlogs.archives import archive_name, open_archive
from cellfeed.store.backups.binlogs.covered import superfluous
from cellfeed.store.backups.binlogs.piece import PieceHead
from cellfeed.store.backups.binlogs.tailed_folder import with_tails
from cellfeed.store.backups.binlogs.transactions import AddedCell, EpochBegin, Transaction
from cellfeed.store.backups.binlogs.verify import verify_archive
from cellfeed.store.backups.check import read_segment
from cellfeed.store.backups.create import create
from cellfeed.store.backups.due import Archived, Report
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import Reader, encode_manifest
from cellfeed.store.backups.marker import MANIFEST
from cellfeed.store.backups.sealed import PLAIN
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, ProtectData, StorageUnavailable
from cellfeed.store.histories import History
from tests.support.rides import rides

SHARDS = 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as opened:
        opened.put_new_cells(rides(0, 10))
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def backed_up(store: Datastore, folder: BackupFolder, onto: Backup | None = None) -> Backup:
    return create(folder, Source(store.engine, belongs), onto=onto)


def written(store: Datastore, first: int) -> list[StoredCell]:
    """Ten more cells as they are stored: their ids begin at ``first``."""
    store.put_new_cells(rides(first, 10))
    return store.engine.scan(0, first, 10)


def archived(
    store: Datastore, folder: BackupFolder, cluster: str, *pieces: Transaction
) -> BinlogArchive:
    """An archive with these pieces, each of one transaction."""
    name = archive_name("trips", store.history_id, cluster)
    place = folder.place.inside(name)
    with place.locked():
        archive = open_archive(
            place, "trips", SHARDS, cluster, store.engine.history, 1, encrypted=False
        )
        reached = archive.reached()
        for piece in pieces:
            head = PieceHead(PLAIN, "", 0, "", "server", "", "0-1-1", 5, 1, 0, {}, 0, "")
            reached = archive.append(reached, head, [piece], None)
        archive.say(reached)
    return archive


def under(epoch: int, cells: Sequence[StoredCell]) -> Transaction:
    return Transaction([AddedCell(0, epoch, cell) for cell in cells])


def tail(folder: BackupFolder, tmp_path: Path) -> tuple[list[StoredCell], list[Reader]]:
    """The cells that archives add, and the readers behind a gap."""
    with with_tails(folder, "trips", None, tmp_path / "into" / "binlogs.restoring") as found:
        newest = found.get(None, "trips")
        cells = [
            cell
            for segment in newest.manifest.segments
            for each in read_segment(newest, segment)
            for cell in each
        ]
        told = cells, found.beyond
    assert not (tmp_path / "into").exists()
    return told


def epoch_of(store: Datastore) -> int:
    return store.engine.leader_epochs(0)[-1][0]


@pytest.mark.parametrize("what", ["a folder", "a file", "a link"])
def test_foreign_files_at_the_target_block_a_restore_and_stay(
    store: Datastore, folder: BackupFolder, tmp_path: Path, what: str
) -> None:
    backed_up(store, folder)
    archived(store, folder, "c1", under(epoch_of(store), written(store, 10)))
    photos, into = tmp_path / "photos", tmp_path / "into"
    photos.mkdir()
    (photos / "one").write_text("mine")
    if what == "a folder":
        photos = photos.rename(into)
    elif what == "a file":
        into.write_text("mine")
    else:
        into.symlink_to(photos)
    with (
        pytest.raises(ProtectData, match="no restore has made it"),
        with_tails(folder, "trips", None, into),
    ):
        pass
    assert (photos / "one").read_text() == "mine"
    assert into.exists()


@pytest.mark.parametrize("left", ["nothing", "a marker", "all"])
def test_leftovers_of_a_killed_restore_are_removed(
    store: Datastore, folder: BackupFolder, tmp_path: Path, left: str
) -> None:
    backed_up(store, folder)
    archived(store, folder, "c1", under(epoch_of(store), written(store, 10)))
    into = tmp_path / "into"
    into.mkdir()
    if left != "nothing":
        (into / "cellfeed-restoring").touch()
    if left == "all":
        (into / "0").mkdir()
        (into / "0" / "cells").write_text("of a row")
    with with_tails(folder, "trips", None, into) as found:
        assert len(found.tails) == 1
    assert not into.exists()


def test_the_archives_of_two_clusters_that_had_the_shard_meet_by_id(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backed_up(store, folder)
    cells, epoch = written(store, 10), epoch_of(store)
    archived(store, folder, "c1", under(epoch, cells[:4]))
    moved = Transaction(epochs=[EpochBegin(0, epoch + 1, 14)])
    archived(store, folder, "c2", moved, under(epoch + 1, cells[4:]))
    assert tail(folder, tmp_path) == (cells, [])


def test_a_cell_counts_only_in_the_leader_epoch_that_its_id_belongs_to(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backed_up(store, folder)
    cells, epoch = written(store, 10), epoch_of(store)
    lost = [cells[9]._replace(added_id=added_id) for added_id in (14, 15)]
    archived(
        store,
        folder,
        "c1",
        under(epoch, [*cells[:4], *lost]),
        Transaction(epochs=[EpochBegin(0, epoch + 1, 14)]),
        under(epoch + 1, cells[4:5]),
    )
    assert tail(folder, tmp_path) == (cells[:5], [])


def test_two_cells_of_one_id_in_one_epoch_are_refused(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backed_up(store, folder)
    cells, epoch = written(store, 10), epoch_of(store)
    other = cells[9]._replace(added_id=10)
    archived(store, folder, "c1", under(epoch, cells[:4]), under(epoch, cells[:2]))
    assert tail(folder, tmp_path) == (cells[:4], []), "read again after a kill"
    archived(store, folder, "c1", under(epoch, [other]))
    with pytest.raises(ProtectData, match="two lives of a server"):
        tail(folder, tmp_path)


def test_a_tail_ends_where_an_id_is_missing_and_later_ids_count_as_read(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backed_up(store, folder)
    cells, epoch = written(store, 10), epoch_of(store)
    archived(store, folder, "c1", under(epoch, [*cells[:3], *cells[5:8]]))
    found, [beyond] = tail(folder, tmp_path)
    assert found == cells[:3]
    assert (beyond.shard, beyond.location, beyond.leader_epoch) == (0, 18, epoch)


def test_a_trimmed_front_is_not_restored(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backed_up(store, folder)
    cells, epoch = written(store, 10), epoch_of(store)
    trimmed = Transaction(log_starts=[(0, 16)])
    archived(store, folder, "c1", under(epoch, cells), trimmed)
    assert tail(folder, tmp_path) == (cells[6:], [])


def test_pieces_go_that_the_last_but_one_whole_backup_has_and_the_last_piece_stays(
    store: Datastore, folder: BackupFolder
) -> None:
    cells, epoch = store.engine.scan(0, 0, 10), epoch_of(store)
    full = backed_up(store, folder)
    later = written(store, 10)
    archive = archived(
        store,
        folder,
        "c1",
        *(under(epoch, [cell]) for cell in (cells[0], cells[9], later[0], later[9])),
    )
    assert superfluous(folder) == [], "one backup may be damaged"
    second = backed_up(store, folder, full)
    [goes] = superfluous(folder)
    assert goes.numbers == [0, 1]
    backed_up(store, folder, second)
    [goes] = superfluous(folder)
    assert goes.numbers == [0, 1, 2]
    archive.remove_pieces(goes.numbers)
    assert [piece.head.number for piece in archive.pieces()] == [3]


def test_an_archive_goes_that_two_restores_one_after_the_other_have_ended(
    store: Datastore, folder: BackupFolder
) -> None:
    archived(store, folder, "c1", under(epoch_of(store), written(store, 10)))
    first, once, twice = store.engine.history, History("1" * 32), History("2" * 32)
    for history, parent in ((once, first), (twice, once)):
        assert superfluous(folder) == []
        made = backed_up(store, folder)
        of = History(history.history_id, parent.history_id, first.origin_id)
        manifest = msgspec.structs.replace(made.manifest, history=of)
        (made.path / MANIFEST).write_bytes(encode_manifest(manifest))
    [goes] = superfluous(folder)
    assert goes.is_whole


def test_the_recovery_point_is_as_old_as_the_archive_that_is_furthest_behind() -> None:
    begun, later = 1_000_000, 9_000_000
    both = {"c1": Archived(500_000, later), "c2": Archived(900_000, 8_000_000)}
    assert Report("x", begun, binlogs=both).recovery_us == 8_000_000
    assert Report("x", begun, binlogs=both).age_s(10_000_000) == 2.0
    gap = {**both, "c2": Archived(begun + 1, later, "purged")}
    assert Report("x", begun, binlogs=gap).recovery_us == begun
    assert Report("x", begun, binlogs={**both, "c3": Archived()}).recovery_us == begun
    assert Report(binlogs=both).recovery_us is None


def test_a_gap_is_reported_until_a_whole_backup_has_begun_behind_it() -> None:
    archived = {"c1": Archived(5_000_000, 9_000_000, "purged"), "c2": Archived(1, 9_000_000)}
    assert Report("x", 4_999_999, binlogs=archived).open_gap("c1") == "purged"
    assert Report("x", 5_000_000, binlogs=archived).open_gap("c1") == ""
    assert Report(binlogs=archived).open_gap("c1") == "purged"
    assert Report("x", 4_999_999, binlogs=archived).open_gap("c2") == ""


def test_an_embedded_datastore_has_no_binlogs() -> None:
    with pytest.raises(InvalidRequest, match="an embedded datastore has none"):
        check_config(Config(backups=[BackupsConfig("backups", binlogs=True)]))


def test_a_tail_is_added_to_the_newest_backup_that_is_whole(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    whole = backed_up(store, folder)
    archived(store, folder, "c1", under(epoch_of(store), written(store, 10)))
    damaged = backed_up(store, folder)
    (damaged.path / damaged.manifest.files[0].name).unlink()
    with with_tails(folder, "trips", None, tmp_path / "binlogs.restoring") as found:
        assert [each.backup.manifest.onto for each in found.tails] == [whole.name]


def test_a_place_that_does_not_answer_is_no_damage_of_an_archive(
    store: Datastore, folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archived(store, folder, "c1", under(epoch_of(store), written(store, 10)))
    assert verify_archive(archive, None) == (1, [])

    def silent(*_: object) -> None:
        raise StorageUnavailable("the bucket does not answer")

    monkeypatch.setattr(archive, "pieces", silent)
    with pytest.raises(StorageUnavailable):
        verify_archive(archive, None)
