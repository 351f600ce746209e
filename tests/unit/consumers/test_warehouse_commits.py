"""The allowed content of a commit record, a table record and a commit folder: a record that
contradicts itself, its own name or the file that it names is damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cellfeed.consumers.warehouse.cell_rows import WarehouseRow
from cellfeed.consumers.warehouse.chain import ShardChain
from cellfeed.consumers.warehouse.layout import (
    COMMITS,
    FORMAT,
    TABLE_FILE,
    CommitRecord,
    TableRecord,
    commit_file,
    data_file_name,
    decode_commit,
    encode_commit,
    encode_table_record,
    shards_with_commits,
)
from cellfeed.consumers.warehouse.parquet_rows import write_rows
from cellfeed.consumers.warehouse.staging import finish_data_file, stage_data_file
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX
from tests.support.warehouse_log import SHARD

GOOD = CommitRecord(
    shard=SHARD,
    start_id=10,
    first_id=12,
    last_id=19,
    start_offset=10,
    next_offset=20,
    rows=5,
    file=data_file_name(SHARD, 12, 19),
    staged="0007-x.parquet.staged",
    file_bytes=1,
    file_sha256="0" * 64,
)


def changed(**fields: Any) -> CommitRecord:
    """A record whose data file is named by its ids, unless said otherwise."""
    made: CommitRecord = msgspec.structs.replace(GOOD, **fields)
    return (
        made
        if "file" in fields
        else msgspec.structs.replace(
            made, file=data_file_name(made.shard, made.first_id, made.last_id)
        )
    )


@pytest.mark.parametrize(
    "record",
    [
        GOOD,
        changed(start_id=12),
        changed(rows=8),
        changed(rows=1),
        changed(first_id=19, rows=1),
        changed(start_offset=0, next_offset=1),
        changed(last_id=ADDED_ID_MAX),
    ],
)
def test_a_commit_that_agrees_with_itself_is_read(record: CommitRecord) -> None:
    path = commit_file(Path("table"), SHARD, record.start_id)
    assert decode_commit(encode_commit(record), path) == record


@pytest.mark.parametrize(
    "record",
    [
        changed(start_id=13),
        changed(start_id=-1),
        changed(first_id=20),
        changed(last_id=ADDED_ID_MAX + 1),
        changed(rows=0),
        changed(rows=9),
        changed(start_offset=-1),
        changed(start_offset=20),
        changed(start_offset=21),
        changed(file=data_file_name(SHARD, 12, 20)),
        changed(file=data_file_name(SHARD + 1, 12, 19)),
        changed(staged="0007-x.parquet"),
        changed(staged="../0007-x.parquet.staged"),
        changed(shard=SHARD + 1),
    ],
)
def test_a_commit_that_contradicts_itself_is_damage(record: CommitRecord) -> None:
    path = commit_file(Path("table"), SHARD, record.start_id)
    with pytest.raises(DataDamaged, match="contradicts itself or its own name"):
        decode_commit(encode_commit(record), path)


@pytest.mark.parametrize(
    "path", [commit_file(Path("table"), SHARD, 11), commit_file(Path("table"), SHARD + 1, 10)]
)
def test_a_commit_under_the_name_of_another_is_damage(path: Path) -> None:
    with pytest.raises(DataDamaged, match="contradicts itself or its own name"):
        decode_commit(encode_commit(GOOD), path)


@pytest.mark.parametrize("text", [encode_table_record(TableRecord(FORMAT + 1, "trips")), b"{}"])
def test_a_table_of_another_format_is_not_opened(tmp_path: Path, text: bytes) -> None:
    (tmp_path / TABLE_FILE).write_bytes(text)
    with pytest.raises(DataDamaged, match=r"format|does not describe a warehouse table"):
        WarehouseTable(tmp_path)
    with pytest.raises(DataDamaged, match=r"format|does not describe a warehouse table"):
        make_table(tmp_path, "trips")


def test_shards_are_found_by_number_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    assert shards_with_commits(tmp_path) == []
    for name in ("shard-0010", "shard-0002", "lost+found", "shard-x", "shard-12000", "shard-0003"):
        (tmp_path / COMMITS / name).mkdir(parents=True)
    assert shards_with_commits(tmp_path) == [2, 3, 10, 12000]


def committed(directory: Path, ids: list[int], shard: int = SHARD, **claims: Any) -> WarehouseTable:
    """A table of one file of the given ids, whose commit claims something else of it."""
    make_table(directory, "trips")
    rows = [WarehouseRow(shard, added_id, bytes(16), "BASE", 1, 0, b"{}") for added_id in ids]
    with stage_data_file(directory, SHARD) as staged:
        write_rows(rows, staged.file)
        size, sha256 = finish_data_file(staged)
        claimed = {
            "first_id": min(ids),
            "last_id": max(ids),
            "rows": len(ids),
            "file_bytes": size,
            "file_sha256": sha256,
            **claims,
        }
        commit = changed(
            start_id=0, start_offset=0, next_offset=30, staged=staged.path.name, **claimed
        )
        assert ShardChain(directory, SHARD).append(commit)
    return WarehouseTable(directory)


def test_a_file_that_matches_its_commit_is_read(tmp_path: Path) -> None:
    table = committed(tmp_path, [1, 2, 9])
    table.check()
    assert [row.added_id for row in table.rows(SHARD)] == [1, 2, 9]


@pytest.mark.parametrize(
    ("ids", "shard", "claims"),
    [
        ([1, 9, 2], SHARD, {}),
        ([1, 2, 2, 9], SHARD, {}),
        ([1, 2, 9], SHARD, {"rows": 2}),
        ([1, 2, 9], SHARD, {"rows": 4}),
        ([1, 2, 9], SHARD, {"first_id": 0}),
        ([1, 2, 9], SHARD, {"last_id": 10}),
        ([1, 2, 9], SHARD + 1, {}),
    ],
)
def test_a_file_with_other_rows_than_its_commit_is_damage(
    tmp_path: Path, ids: list[int], shard: int, claims: dict[str, int]
) -> None:
    table = committed(tmp_path, ids, shard, **claims)
    with pytest.raises(DataDamaged, match="holds other rows than its commit says"):
        list(table.rows(SHARD))
    with pytest.raises(DataDamaged, match="holds other rows than its commit says"):
        table.check()


@pytest.mark.parametrize("claims", [{"file_bytes": 1}, {"file_sha256": "0" * 64}])
def test_a_file_of_another_size_or_another_digest_is_damage(
    tmp_path: Path, claims: dict[str, Any]
) -> None:
    with pytest.raises(DataDamaged, match="is not the file that was committed"):
        committed(tmp_path, [1, 2, 9], **claims).check()


def test_one_row_of_another_shard_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cellfeed.consumers.warehouse import parquet_rows

    table = committed(tmp_path, [1, 2, 9])
    read = parquet_rows.read_rows

    def one_of_another(path: str) -> list[WarehouseRow]:
        first, *others = read(path)
        return [first._replace(shard=SHARD + 1), *others]

    monkeypatch.setattr(parquet_rows, "read_rows", one_of_another)
    with pytest.raises(DataDamaged, match="holds other rows"):
        list(table.rows(SHARD))
