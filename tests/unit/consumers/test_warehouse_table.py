"""Reading a table while loaders are at work: shards, positions, last rows and digests of a part of
the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.consumers.warehouse.chain import ShardChain, check_no_stray_commits
from cellfeed.consumers.warehouse.layout import COMMITS, Position, shard_folder
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.store.cells.digest import ShardDigest
from tests.support.warehouse_log import SHARD, Log, feed, table_directory


@pytest.fixture
def log() -> Log:
    return Log(range(20))


@pytest.fixture
def directory(tmp_path: Path, log: Log) -> Path:
    """A table of two files of one shard, behind which no loader is at work."""
    made = table_directory(tmp_path)
    loader = ShardLoader(made, SHARD)
    for count in (8, 12):
        feed(loader, log, count)
        assert loader.flush() is not None
    return made


def digest_of(log: Log, begin: int, end: int, *, body: bytes | None = None) -> str:
    digest = ShardDigest()
    for added_id, key, column, ref_key, own in log.cells[begin:end]:
        digest.add(added_id, key, column, ref_key, own if body is None else body)
    return digest.hexdigest()


def test_an_open_table_sees_later_commits(tmp_path: Path, log: Log) -> None:
    directory = table_directory(tmp_path)
    table, chain = WarehouseTable(directory), ShardChain(directory, SHARD)
    assert not chain.refresh()
    loader = ShardLoader(directory, SHARD)
    for count in (8, 12):
        assert table.row_count() == loader.committed.next_id
        feed(loader, log, count)
        loader.flush()
    assert table.row_count() == len(list(table.rows())) == 20
    assert chain.refresh()
    assert not chain.refresh()


def test_a_shard_folder_without_a_commit_counts_as_no_shard(directory: Path) -> None:
    """Its loader died between making the folder and the commit."""
    (directory / COMMITS / shard_folder(SHARD + 1)).mkdir()
    table = WarehouseTable(directory)
    assert table.shards() == [SHARD]
    assert table.positions() == {SHARD: Position(20, 20)}
    assert list(table.digests()) == [SHARD]
    assert list(table.rows(SHARD + 1)) == []
    table.check()


def test_rows_of_one_shard_are_not_those_of_another(directory: Path, log: Log) -> None:
    other = ShardLoader(directory, SHARD + 1)
    other._buffer.rows += [
        row._replace(shard=SHARD + 1) for row in WarehouseTable(directory).rows(SHARD)
    ][:3]
    other._next = Position(3, 3)
    assert other.flush() is not None
    table = WarehouseTable(directory)
    assert {row.shard for row in table.rows(SHARD)} == {SHARD}
    assert len(list(table.rows(SHARD + 1))) == 3
    assert len(list(table.rows())) == 23
    assert table.row_count() == 23


def test_the_last_row_of_a_shard_lies_before_the_offset_where_reading_resumes(
    tmp_path: Path, log: Log
) -> None:
    directory = table_directory(tmp_path)
    loader = ShardLoader(directory, SHARD, offset_is_added_id=False)
    for offset, (_, value) in zip([0, 1, 4], log.records[:3], strict=True):
        loader.add(offset, value)
    loader.flush()
    [(shard, (offset, row))] = WarehouseTable(directory).last_rows().items()
    assert (shard, offset, row.added_id) == (SHARD, 4, 2)


@pytest.mark.parametrize("end", [0, 1, 7, 8, 9, 19, 20, 50])
def test_a_digest_ends_before_the_id_that_is_asked_for(directory: Path, log: Log, end: int) -> None:
    table = WarehouseTable(directory)
    found = table.digests(until={SHARD: end, SHARD + 1: 5})
    assert found[SHARD].hexdigest() == digest_of(log, 0, end)
    assert found[SHARD + 1].hexdigest() == ShardDigest().hexdigest()


@pytest.mark.parametrize("begin", [0, 3, 8, 20])
def test_a_digest_begins_at_the_id_that_is_asked_for(directory: Path, log: Log, begin: int) -> None:
    table = WarehouseTable(directory)
    assert table.digests(begin={SHARD: begin})[SHARD].hexdigest() == digest_of(log, begin, 20)
    assert table.digests({SHARD: 12}, {SHARD: begin})[SHARD].hexdigest() == digest_of(
        log, begin, 12
    )


def test_digests_use_the_replaced_body_of_a_cell(directory: Path, log: Log) -> None:
    seen = []

    def erased(shard: int, added_id: int, body: bytes) -> bytes:
        seen.append((shard, added_id, body))
        return b"erased"

    [digest] = WarehouseTable(directory).digests(body_of=erased).values()
    assert digest.hexdigest() == digest_of(log, 0, 20, body=b"erased")
    assert seen == [(SHARD, cell[0], cell[4]) for cell in log.cells]


def test_waiting_rows_are_counted_with_their_bodies_until_they_are_committed(
    tmp_path: Path, log: Log
) -> None:
    loader = ShardLoader(table_directory(tmp_path), SHARD)
    assert loader.waiting_bytes == 0
    feed(loader, log, 1)
    one = loader.waiting_bytes
    assert one > len(log.cells[0][4])
    feed(loader, log, 9)
    assert loader.waiting_bytes == 10 * one
    loader.flush()
    assert (loader.waiting_rows, loader.waiting_bytes) == (0, 0)


def test_sql_speaks_of_moments_in_utc(directory: Path) -> None:
    [row] = WarehouseTable(directory).query(
        "SELECT current_setting('TimeZone') AS zone, min(created_at)::VARCHAR AS at FROM cells"
    )
    assert row == {"zone": "UTC", "at": "2023-11-14 22:13:20+00"}


def test_a_commit_during_the_check_is_not_reported_as_stray(tmp_path: Path, log: Log) -> None:
    directory = table_directory(tmp_path)
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 8)
    chain = ShardChain(directory, SHARD)
    loader.flush()
    check_no_stray_commits(chain)
    assert chain.position.next_id == 8
    refresh = chain.refresh

    def overtaken() -> bool:
        grew = refresh()
        feed(loader, log, 8)
        loader.flush()
        return grew

    chain.refresh = overtaken  # type: ignore[method-assign]
    check_no_stray_commits(chain)
