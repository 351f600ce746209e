"""Damage in a MariaDB server's tables is an error that names the place: no answer is shorter, or
another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import RESTORED_COLUMN, NewCell, StoredCell, Triple
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import DataDamaged
from tests.support.local_mariadb import MariaDB
from tests.support.rides import rides

pytestmark = pytest.mark.integration

SHARDS = 2
CELLS = rides(0, 900)


@pytest.fixture
def engine(empty_mariadb: MariaDB) -> Iterator[MySqlEngine]:
    with closing(
        MySqlEngine(MySqlServer(empty_mariadb.url), "trips", SHARDS, create=True)
    ) as engine:
        engine.put(CELLS)
        yield engine


def log(engine: MySqlEngine, shard: int = 0) -> list[StoredCell]:
    return engine.scan(shard, 0, 10_000)


@pytest.mark.parametrize(
    "change",
    [
        "row_key = REPEAT(X'07', 16)",
        "column_name = 'OTHER'",
        "column_name = X'FF'",
        "ref_key = ref_key + 1",
        "created_at = created_at + INTERVAL 1 MICROSECOND",
        "body = X'04'",
        "crc = crc ^ 1",
    ],
)
def test_a_swapped_cell_is_named_on_every_path_of_reads(
    engine: MySqlEngine, empty_mariadb: MariaDB, change: str
) -> None:
    cell = engine.scan(0, 5, 1)[0]
    empty_mariadb.sql(f"UPDATE trips_0000.cell SET {change} WHERE added_id = 5")
    ways: list[Callable[[], object]] = [
        lambda: engine.scan(0, 0, 400),
        lambda: engine.scan(0, 5, 1),
        lambda: engine.scan_many([LogRange(1, 0, 10), LogRange(0, 0, 10)]),
    ]
    if "column" not in change:
        ways.append(lambda: engine.indexes.cells_between(0, [cell.column_name], 0, 10, 0))
    if "row_key" not in change:
        ways += [lambda: engine.row([cell.row_key]), lambda: engine.row_cells(cell.row_key)]
        ways += [lambda: engine.indexes.current({0: [cell.row_key]}, None)]
    if "created" in change or "body" in change or "crc" in change:
        ways += [
            lambda: engine.get([Triple(*cell[1:4])]),
            lambda: engine.latest([(cell.row_key, cell.column_name)]),
        ]
    for way in ways:
        with pytest.raises(DataDamaged, match="added_id 5 of shard 0"):
            way()
    assert len(engine.scan(0, 6, 20)) == 20, "the others are there"


def test_a_damaged_cell_fails_only_its_own_put(engine: MySqlEngine, empty_mariadb: MariaDB) -> None:
    damaged = engine.scan(0, 5, 1)[0]
    empty_mariadb.sql("UPDATE trips_0000.cell SET created_at = '2001-01-01' WHERE added_id = 5")
    results = engine.put([*CELLS, *rides(900, 5)])
    assert [
        cell.row_key
        for cell, result in zip(CELLS, results, strict=False)
        if result.outcome is Outcome.FAILED
    ] == [damaged.row_key]
    assert [result.outcome for result in results[900:]] == [Outcome.STORED] * 5


@pytest.mark.parametrize(
    ("gone", "told"),
    [("= 0", "0 to 0"), ("BETWEEN 40 AND 44", "40 to 44"), ("BETWEEN 100 AND 1000", "100 to ")],
)
@pytest.mark.parametrize("limit", [150, 10_000])
def test_cells_that_are_lost_from_a_log_are_no_shorter_log(
    engine: MySqlEngine, empty_mariadb: MariaDB, gone: str, told: str, limit: int
) -> None:
    empty_mariadb.sql(f"DELETE FROM trips_0000.cell WHERE added_id {gone}")
    for scan in (
        lambda: engine.scan(0, 0, limit),
        lambda: engine.scan_many([LogRange(1, 0, 10), LogRange(0, 0, limit)]),
    ):
        with pytest.raises(DataDamaged, match=f"shard 0 has no cells from added_id {told}"):
            scan()
    assert len(engine.scan(0, 1, 30)) == 30
    assert len(engine.scan(1, 0, 10_000)) > 300


def test_a_trim_and_the_end_of_a_log_are_no_gaps(engine: MySqlEngine) -> None:
    end = engine.heads()[0].next_added_id
    engine.trim(0, 100)
    assert [cell.added_id for cell in engine.scan(0, 100, 10_000)] == list(range(100, end))
    assert engine.scan(0, end, 10) == engine.scan(0, end + 5, 1_000) == []


@pytest.mark.parametrize("limit", [10, 500])
def test_ids_that_a_restore_left_out_are_no_damage(
    engine: MySqlEngine, empty_mariadb: MariaDB, limit: int
) -> None:
    [last] = log(engine)[-1:]
    end = last.added_id + 1
    empty_mariadb.sql(
        "UPDATE trips_meta.shard_counter SET next_added_id = next_added_id + 1000 WHERE shard = 0"
    )
    engine.put([NewCell(last.row_key, RESTORED_COLUMN, 1, b"{}")])
    assert [cell.added_id for cell in engine.scan(0, end - 1, limit)] in (
        [end - 1, end + 1000],
        [end - 1],
    )
    assert [cell.added_id for cell in engine.scan(0, end + 5, limit)] == [end + 1000]
    assert [
        [cell.added_id for cell in cells]
        for cells in engine.scan_many([LogRange(0, end + 5, limit)])
    ] == [[end + 1000]]


def test_cells_of_the_version_before_are_read_and_an_erasure_leaves_a_checksum_that_fits(
    engine: MySqlEngine, empty_mariadb: MariaDB
) -> None:
    before = log(engine)
    empty_mariadb.sql("UPDATE trips_0000.cell SET crc = NULL WHERE added_id < 400")
    assert log(engine) == before
    for erased in (before[0], before[-1]):
        assert engine.erase(erased.row_key).done
    after = log(engine)
    assert [cell[:5] for cell in after[: len(before)]] == [cell[:5] for cell in before]
    assert [
        decode_body(cell.body)
        for cell in after
        if cell.row_key in (before[0].row_key, before[-1].row_key)
    ] == [b"null"] * 4
    assert empty_mariadb.sql("SELECT COUNT(*) FROM trips_0000.cell WHERE crc IS NULL") == [(399,)]
    empty_mariadb.sql("UPDATE trips_0000.cell SET ref_key = ref_key + 1 WHERE added_id = 0")
    with pytest.raises(DataDamaged, match="added_id 0 of shard 0"):
        log(engine)
    assert shard_of(before[0].row_key, SHARDS) == 0
