"""A restore to a point in time: each log is the prefix that was there, and the state is older.
Neither a trim nor an erasure nor a clock that went back makes it anything else."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import restored
from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.trimming.trim import ShardPlan, Trimming
from cellfeed.cli.restore_point import Choice, Chosen
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import dictionaries_known, read_state
from cellfeed.store.backups.covering import covering
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.readers_ahead import IDS_LEFT_OUT, backup_readers
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, RESTORED_COLUMN, StoredCell, moment
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, ProtectData
from tests.support.backups_made import backed_up
from tests.support.rides import ride, rides, row_of

SHARDS = 4
OPERATOR = Operator("a test", "for a test")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


class Moment(NamedTuple):
    """A point in time, and the logs as they were, by shard."""

    at_us: int
    logs: dict[int, list[StoredCell]]
    ends: dict[int, int]


def now(store: Datastore) -> Moment:
    """Nothing that comes has the same microsecond."""
    heads = store.heads()
    logs = {
        shard: store.engine.scan(shard, head.log_start, 10_000) for shard, head in heads.items()
    }
    time.sleep(0.001)
    at_us = store.engine.state.now_us()
    time.sleep(0.001)
    return Moment(at_us, logs, {shard: head.watermark for shard, head in heads.items()})


def trim(store: Datastore, below: dict[int, int]) -> None:
    """As `cellfeed trim` does, with its history."""
    with closing(StoreCoordinator(store.state)) as coordinator:
        heads = store.heads()
        plans = [ShardPlan(shard, heads[shard].log_start, end) for shard, end in below.items()]
        Trimming(store, coordinator).run(plans, OPERATOR)


def chosen_at(folder: BackupFolder, at_us: int) -> Chosen:
    return Choice(folder, None, moment(at_us).isoformat(), "trips").checked(None, None)


def restored_at(directory: Path, folder: BackupFolder, at_us: int) -> tuple[Datastore, Chosen]:
    """As `cellfeed restore --at` does, without readers elsewhere."""
    chosen = chosen_at(folder, at_us)
    later = folder.later(chosen.state_of)
    state = read_state(chosen.state_of)
    told = recorded_in(Register(folder.path), chosen.state_of, later)
    with dictionaries_known(chosen.chain):
        erased = to_erase(chosen.chain, state, told, chosen.manifest.logs)
    readers = backup_readers(later)
    new_ids = {
        log.shard: max([log.watermark, *(r.location for r in readers if r.shard == log.shard)])
        + IDS_LEFT_OUT
        for log in chosen.manifest.logs
    }
    planned = plan(
        chosen.chain,
        restored(state, at_us, [key for keys in erased.values() for key in keys]),
        readers,
        new_ids,
        time.time_ns() // 1000,
        "a test",
        erased,
        point=chosen.backup,
    )
    with SqliteTarget(directory / "trips", "trips", SHARDS) as target:
        restore(planned, target)
    return Datastore.open_embedded(directory, "trips", SHARDS), chosen


def logs_of(store: Datastore) -> dict[int, list[StoredCell]]:
    """Without the restore's own cells."""
    return {
        shard: [
            cell
            for cell in store.engine.scan(shard, head.log_start, 10_000)
            if cell.added_id < IDS_LEFT_OUT
        ]
        for shard, head in store.heads().items()
    }


def without_bodies(cells: list[StoredCell]) -> list[StoredCell]:
    return [cell._replace(body=b"") for cell in cells]


def taken(store: Datastore, folder: BackupFolder, onto: Backup | None) -> Backup:
    """An increment, or a full backup where the store refuses one."""
    try:
        return backed_up(store, folder, onto)
    except ProtectData:
        return backed_up(store, folder)


_STEPS = ["put", "put", "put", "again", "backup", "backup", "trim", "trim", "erase", "moment"]


@pytest.mark.parametrize("seed", range(4))
def test_every_restored_log_is_a_prefix_of_the_original(
    store: Datastore,
    folder: BackupFolder,
    tmp_path: Path,
    seed: int,
) -> None:
    chance = random.Random(seed)
    moments, erased, put = list[Moment](), dict[bytes, int](), 0
    store.put_new_cells(rides(1_000, 40))
    newest = [backed_up(store, folder)]
    for _ in range(30):
        match chance.choice(_STEPS):
            case "put":
                store.put_new_cells(rides(put, count := chance.randrange(1, 30)))
                put += count
            case "again" if put:  # a trimmed cell is a new one
                store.put_new_cells(rides(chance.randrange(put), 5))
            case "backup":
                onto = newest[-1] if chance.random() < 0.7 else None
                newest.append(taken(store, folder, onto))
                moments.append(now(store))
            case "trim":
                shard = chance.randrange(SHARDS - 1)  # the last one proves the store
                head = store.heads()[shard]
                trim(store, {shard: chance.randint(head.log_start, head.watermark)})
            case "erase" if put:
                row_key = row_of(chance.randrange(put))
                store.erase_row(row_key)
                shard = shard_of(row_key.bytes, SHARDS)
                erased[row_key.bytes] = store.heads()[shard].watermark
            case _:
                moments.append(now(store))
    taken(store, folder, newest[-1])
    covered = [each for each in moments if each.at_us >= newest[0].manifest.created_at_us]
    assert covered
    for number, wanted in enumerate(covered):
        opened, chosen = restored_at(tmp_path / str(number), folder, wanted.at_us)
        with opened:
            found = logs_of(opened)
            ends = {log.shard: log.watermark for log in chosen.manifest.logs}
            for shard in range(SHARDS):
                if shard in chosen.trimmed:
                    assert ends[shard] <= wanted.ends[shard] or not found[shard]
                else:
                    assert ends[shard] == wanted.ends[shard]
                then = {cell.added_id: cell for cell in wanted.logs[shard]}
                for cell in found[shard]:
                    assert cell.added_id < ends[shard]
                    before = then.get(cell.added_id)
                    if before is None:
                        continue  # trimmed before the moment, and not put again
                    assert cell._replace(body=b"") == before._replace(body=b"")
                    # A row is put again when a trim has taken the cell that reports its erasure.
                    is_gone = (
                        cell.added_id < erased.get(cell.row_key, 0)
                        and cell.column_name != ERASED_COLUMN
                    )
                    assert is_erased(cell.body) if is_gone else cell.body == before.body
                still = {
                    cell.added_id
                    for cell in store.engine.scan(shard, store.heads()[shard].log_start, 10_000)
                }
                there = {cell.added_id for cell in found[shard]}
                assert {added_id for added_id in then if added_id < ends[shard]} & still <= there
            triples = [
                (cell.row_key, cell.column_name, cell.ref_key)
                for cells in found.values()
                for cell in cells
                if cell.column_name != ERASED_COLUMN
            ]
            assert len(triples) == len(set(triples))


def test_the_state_is_of_the_backup_before_and_no_offset_lies_beyond_a_log(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    def reads_all(coordinator: StoreCoordinator) -> None:
        coordinator.commit_offsets(
            "billing",
            {("trips", s): CommittedOffset(h.watermark, 0) for s, h in store.heads().items()},
        )

    with closing(StoreCoordinator(store.state)) as coordinator:
        store.put_new_cells(rides(0, 50))
        reads_all(coordinator)
        before = backed_up(store, folder)
        ends = {shard: head.watermark for shard, head in store.heads().items()}
        store.put_new_cells(rides(50, 50))
        point = now(store)
        store.put_new_cells(rides(100, 50))
        reads_all(coordinator)
        backed_up(store, folder, before)
    opened, chosen = restored_at(tmp_path / "new", folder, point.at_us)
    with opened, closing(StoreCoordinator(opened.state)) as coordinator:
        offsets = coordinator.fetch_offsets("billing")
        assert {shard: each.offset for (_, shard), each in offsets.items()} == ends
        assert chosen.state_of.name == before.name
        assert logs_of(opened) == point.logs
        assert opened.engine.history.parent == store.engine.history.history_id
        assert opened.engine.history.history_id != store.engine.history.history_id
        for shard, head in opened.heads().items():
            note = opened.engine.scan(shard, point.ends[shard], 1)[0]
            assert note.column_name == RESTORED_COLUMN
            assert head.watermark > store.heads()[shard].watermark


def test_a_moment_that_no_two_backups_cover_is_refused_with_the_earliest_and_the_latest(
    store: Datastore, folder: BackupFolder
) -> None:
    too_early = now(store)
    first = backed_up(store, folder)
    newest = backed_up(store, folder, first)
    for at_us in (too_early.at_us, now(store).at_us):
        with pytest.raises(InvalidRequest) as refused:
            covering(folder, "trips", at_us)
        for backup in (first, newest):
            assert backup.name in str(refused.value)
            assert moment(backup.manifest.created_at_us).isoformat() in str(refused.value)
    for text in ("2026-03-01T12:00:00", "yesterday"):
        with pytest.raises(InvalidRequest, match="--at"):
            Choice(folder, None, text, "trips")
    with pytest.raises(InvalidRequest, match="leave --backup out"):
        Choice(folder, first.name, moment(too_early.at_us).isoformat(), "trips")


def test_the_moment_at_which_a_backup_began_is_that_backup(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    store.put_new_cells(rides(0, 50))
    backup = backed_up(store, folder)
    opened, chosen = restored_at(tmp_path / "new", folder, backup.manifest.created_at_us)
    with opened:
        assert logs_of(opened) == now(store).logs
        assert (chosen.chain, chosen.state_of) == ([backup], backup)


def test_a_clock_that_went_back_leaves_a_prefix(store: Datastore, folder: BackupFolder) -> None:
    store.put_new_cells(rides(0, 50))
    backups = [backed_up(store, folder)]
    for first in (50, 100):
        store.put_new_cells(rides(first, 50))
        backups.append(backed_up(store, folder, backups[-1]))
    begun = [each.manifest.created_at_us for each in backups]
    last = [max(log.last_created_at_us for log in each.manifest.logs) for each in backups]
    assert last[0] < begun[0] < last[1] < begun[1] < last[2] < begun[2]

    def pair(at_us: int, *begins: int) -> list[int] | None:
        """Of backups that began at these moments: the places of the two around one."""
        from cellfeed.store.backups.covering import _around

        told = [
            Backup(
                each.place,
                msgspec.structs.replace(each.manifest, created_at_us=begin),
                each.sha256,
            )
            for each, begin in zip(backups, begins, strict=True)
        ]
        found = _around(told, at_us)
        return found and [told.index(each) for each in found]

    assert pair(begun[0] + 1, *begun) == [0, 1]
    assert pair(begun[1] + 1, *begun) == [1, 2]
    # The last one began before the first, by its clock, and its cells are later than the moment:
    # nobody knows whose clock was right.
    assert pair(begun[0] + 1, begun[0], begun[1], begun[0] - 9) is None
    # The clock of the one in the middle was ahead: cells from before the point may have come since.
    assert pair(begun[0] + 1, begun[0], begun[2] + 9, begun[2]) == [0, 2]
    # A cell that was put after the moment is in the backup that began before it.
    assert pair(last[1] - 1, begun[0], last[1] - 1, begun[2]) == [0, 1]


def test_a_point_between_two_full_backups_needs_both_to_be_of_one_log(
    folder: BackupFolder, tmp_path: Path
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    with Datastore.open_embedded(source, "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 50))
    shutil.copytree(source, copy)
    with Datastore.open_embedded(source, "trips", SHARDS) as store:
        store.put_new_cells(rides(50, 50))
        first = backed_up(store, folder)
        store.put_new_cells(rides(100, 50))
        point = now(store)
        store.put_new_cells(rides(150, 50))
        second = backed_up(store, folder)
    opened, chosen = restored_at(tmp_path / "new", folder, point.at_us)
    with opened:
        assert logs_of(opened) == point.logs
        assert [each.name for each in chosen.chain] == [first.name, second.name]
    shutil.rmtree(source)
    shutil.rmtree(second.path)
    copy.rename(source)
    with Datastore.open_embedded(source, "trips", SHARDS) as store:
        store.put_new_cells(rides(500, 200))
        backed_up(store, folder)
    with pytest.raises(ProtectData, match="put back from a copy"):
        chosen_at(folder, point.at_us)


def test_only_a_trim_after_the_point_is_undone(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    store.put_new_cells(rides(0, 100))
    first = backed_up(store, folder)
    trim(store, {0: 5})
    store.put_new_cells(rides(100, 100))
    ends = now(store).ends
    before = backed_up(store, folder, first)
    point = now(store)
    trim(store, {0: 10, 1: 8, 2: ends[2]})
    backed_up(store, folder, before)
    opened, chosen = restored_at(tmp_path / "new", folder, point.at_us)
    with opened:
        assert logs_of(opened) == point.logs
        assert {shard: head.log_start for shard, head in opened.heads().items()} == {
            0: 5,
            1: 0,
            2: 0,
            3: 0,
        }
        assert chosen.trimmed == {}


@pytest.mark.parametrize("is_full", [False, True])
def test_a_trim_before_the_point_lets_its_cells_be_put_again(
    store: Datastore, folder: BackupFolder, tmp_path: Path, is_full: bool
) -> None:
    store.put_new_cells(rides(0, 40))
    first = backed_up(store, folder)
    ends = now(store).ends
    trim(store, {**ends, 3: ends[3] - 1})
    store.put_new_cells(rides(0, 40))
    point = now(store)
    trim(store, {0: store.heads()[0].log_start + 1})
    backed_up(store, folder, None if is_full else first)
    opened, _ = restored_at(tmp_path / "new", folder, point.at_us)
    with opened:
        found = logs_of(opened)
        assert {shard: cells for shard, cells in found.items() if shard} == {
            shard: cells for shard, cells in point.logs.items() if shard
        }
        assert found[0] == point.logs[0][1:]


def test_a_log_without_cells_in_later_backups_ends_with_the_earlier_backup_and_is_named(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    store.put_new_cells(rides(0, 100))
    first = backed_up(store, folder)
    ends = now(store).ends
    store.put_new_cells(rides(100, 100))
    point = now(store)
    trim(store, {1: point.ends[1]})
    backed_up(store, folder, first)
    opened, chosen = restored_at(tmp_path / "new", folder, point.at_us)
    with opened:
        found = logs_of(opened)
        assert found[1] == point.logs[1][: ends[1]]
        assert found[2] == point.logs[2]
    assert chosen.trimmed == {1: (ends[1], point.ends[1] - 1)}


def test_an_erasure_counts_whenever_it_was(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    store.put_new_cells(rides(0, 40))
    first = backed_up(store, folder)
    store.erase_row(row_of(1))
    store.put_new_cells([ride(row) for row in range(40, 60)])
    point = now(store)
    store.erase_row(row_of(2))  # behind the point, before the next backup
    store.erase_row(row_of(45))
    second = backed_up(store, folder, first)
    store.erase_row(row_of(3))  # behind both
    backed_up(store, folder, second)
    opened, _ = restored_at(tmp_path / "new", folder, point.at_us)
    with opened:
        found = logs_of(opened)
        for shard in range(SHARDS):
            assert without_bodies(found[shard]) == without_bodies(point.logs[shard])
        gone = {cell.row_key for cells in found.values() for cell in cells if is_erased(cell.body)}
        assert gone == {row_of(row).bytes for row in (1, 2, 3, 45)}
        assert opened.get_row(row_of(4))
        [failed] = opened.put_new_cells([ride(45)])
        assert not failed.acknowledged


def test_backups_without_proof_of_one_common_store_are_not_restored_together(
    store: Datastore, folder: BackupFolder
) -> None:
    store.put_new_cells(rides(0, 40))
    backed_up(store, folder)
    ends = now(store).ends
    store.put_new_cells(rides(40, 40))
    point = now(store)
    trim(store, ends)
    backed_up(store, folder)
    with pytest.raises(ProtectData, match="nothing shows whether they are of one store"):
        chosen_at(folder, point.at_us)


def test_a_trim_that_no_history_records_stays(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    store.put_new_cells(rides(0, 40))
    first = backed_up(store, folder)
    trim(store, {1: 1})
    point = now(store)
    store.engine.trim(0, 4)
    backed_up(store, folder, first)
    opened, _ = restored_at(tmp_path / "new", folder, point.at_us)
    with opened:
        assert {shard: head.log_start for shard, head in opened.heads().items()} == {
            0: 4,
            1: 1,
            2: 0,
            3: 0,
        }
