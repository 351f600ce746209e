"""Damage of an embedded file is an error that names the place: no answer is shorter, or another
one, and no error is one of Python's or SQLite's own."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import RESTORED_COLUMN, NewCell, StoredCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.scrub import scrub_files
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import CellfeedError, DataDamaged
from tests.support.rides import rides

SHARDS = 2
FLIPS = 150
CELLS = rides(0, 300)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with closing(opened(tmp_path / "trips")) as engine:
        engine.put(CELLS)
    return tmp_path / "trips"


def opened(place: Path) -> SqliteEngine:
    return SqliteEngine(place, "trips", SHARDS)


def run(place: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(place / CELLS_FILE)) as connection, connection:
        assert connection.execute(sql, values).rowcount > 0


def log(engine: SqliteEngine, shard: int = 0) -> list[tuple[Any, ...]]:
    return [(*cell[:5], decode_body(cell.body)) for cell in engine.scan(shard, 0, 10_000)]


@pytest.mark.parametrize(
    "change",
    [
        "row_key = zeroblob(16)",
        "column_name = 'OTHER'",
        "ref_key = ref_key + 1",
        "created_at_us = created_at_us + 1",
        "body = x'04'",
    ],
)
def test_a_swapped_cell_is_named_on_every_path_of_reads(place: Path, change: str) -> None:
    with closing(opened(place)) as engine:
        cell = engine.scan(0, 5, 1)[0]
    run(place, f"UPDATE cell SET {change} WHERE position = 5")
    with closing(opened(place)) as engine:
        ways: list[Callable[[], object]] = [
            lambda: engine.scan(0, 0, 100),
            lambda: engine.scan(0, 5, 1),
        ]
        if "row_key" not in change:
            ways += [lambda: engine.row([cell.row_key]), lambda: engine.row_cells(cell.row_key)]
            ways += [lambda: engine.indexes.current({0: [cell.row_key]}, None)]
        if "created" in change or "body" in change:
            ways += [lambda: engine.get([cell[1:4]]), lambda: engine.latest([cell[1:3]])]  # type: ignore[list-item]
        for way in ways:
            with pytest.raises(DataDamaged, match="added_id 5 of shard 0"):
                way()
        assert len(engine.scan(0, 6, 20)) == 20, "the others are there"


def test_a_damaged_cell_fails_only_its_own_put(place: Path) -> None:
    with closing(opened(place)) as engine:
        damaged = engine.scan(0, 5, 1)[0]
    run(place, "UPDATE cell SET created_at_us = 0 WHERE position = 5")
    with closing(opened(place)) as engine:
        results = engine.put([*CELLS, *rides(300, 5)])
        failed = [
            cell.row_key
            for cell, result in zip(CELLS, results, strict=False)
            if result.outcome is Outcome.FAILED
        ]
        assert failed == [damaged.row_key]
        assert [result.outcome for result in results[300:]] == [Outcome.STORED] * 5


@pytest.mark.parametrize(
    ("gone", "told"),
    [("= 0", "0 to 0"), ("BETWEEN 40 AND 44", "40 to 44"), ("BETWEEN 100 AND 1000", "100 to ")],
)
def test_cells_that_are_lost_from_a_log_are_no_shorter_log(
    place: Path, gone: str, told: str
) -> None:
    run(place, f"DELETE FROM cell WHERE position {gone}")
    with closing(opened(place)) as engine:
        with pytest.raises(DataDamaged, match=f"shard 0 has no cells from added_id {told}"):
            engine.scan(0, 0, 10_000)
        assert len(engine.scan(0, 1, 30)) == 30
        assert engine.scan(1, 0, 10_000)


def test_ids_that_a_restore_left_out_are_no_damage(place: Path) -> None:
    with closing(opened(place)) as engine:
        end = engine.heads()[0].next_added_id
    run(place, "UPDATE shard_counter SET next_added_id = next_added_id + 1000 WHERE shard = 0")
    with closing(opened(place)) as engine:
        row_key = next(cell.row_key for cell in engine.scan(0, 0, 1))
        engine.put([NewCell(row_key, RESTORED_COLUMN, 1, b"{}")])
        assert [cell.added_id for cell in engine.scan(0, end - 1, 10)] == [end - 1, end + 1000]
        assert [cell.added_id for cell in engine.scan(0, end + 5, 10)] == [end + 1000]


def test_cells_of_the_version_before_are_read_and_get_a_checksum_from_a_scrub(place: Path) -> None:
    with closing(opened(place)) as engine:
        before = log(engine)
    run(place, "UPDATE cell SET crc = NULL")
    with closing(opened(place)) as engine:
        assert log(engine) == before
        engine.erase(before[0][1])
    scrub_files(place)
    with closing(sqlite3.connect(place / CELLS_FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM cell WHERE crc IS NULL").fetchone() == (0,)
    with closing(opened(place)) as engine:
        assert log(engine)[1:-1] == before[1:]
        assert engine.scan(0, 0, 10_000)[0].created_at_us == before[0][4]
    run(place, "UPDATE cell SET ref_key = ref_key + 1 WHERE position = 5")
    with closing(opened(place)) as engine, pytest.raises(DataDamaged):
        log(engine)


def test_one_flipped_bit_is_an_error_of_ours_or_has_no_effect(place: Path, tmp_path: Path) -> None:
    with closing(opened(place)) as engine:
        whole = [log(engine, shard) for shard in range(SHARDS)]
    data = (place / CELLS_FILE).read_bytes()
    chance, refused = random.Random(21), 0
    copy = tmp_path / "copy"
    for _ in range(FLIPS):
        bit = chance.randrange(len(data) * 8)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        (copy / CELLS_FILE).write_bytes(damaged)
        try:
            with closing(opened(copy)) as engine:
                for shard in range(SHARDS):
                    assert log(engine, shard) == whole[shard], f"bit {bit}: another log"
                for cell in chance.sample(CELLS, 20):
                    [found] = engine.get([cell.triple])
                    # A search of a damaged index may find nothing: only a check of the whole file
                    # tells.
                    assert found is None or decode_body(found.cell.body) == cell.body_json, (
                        f"bit {bit}: another cell"
                    )
                Datastore(engine).heads()
        except CellfeedError:
            refused += 1
    assert refused > FLIPS / 5, "the flips hit nothing"


def test_no_flipped_bit_of_an_entry_in_the_index_of_keys_hides_its_cell(place: Path) -> None:
    """A search by key that ends beside an entry which is not its row's is an error, and never "not
    there"."""
    cell = CELLS[77]
    with closing(sqlite3.connect(place / CELLS_FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = (place / CELLS_FILE).read_bytes()
    places = [found.start() for found in re.finditer(re.escape(cell.row_key), data)]
    assert len(places) == 2
    refused = 0
    for bit in range(0, 16 * 8, 3):
        for start in places:
            damaged = bytearray(data)
            damaged[start + bit // 8] ^= 1 << bit % 8
            (place / CELLS_FILE).write_bytes(damaged)
            with closing(opened(place)) as engine:
                asks: list[Callable[[], LocatedCell | None]] = [
                    lambda: engine.get([cell.triple])[0],
                    lambda: engine.latest([(cell.row_key, cell.column_name)])[0],
                    lambda: next(iter(engine.row([cell.row_key])[0]), None),
                ]
                for ask in asks:
                    try:
                        found = ask()
                        assert found is not None, f"bit {bit} of the key at {start}: not there"
                        assert decode_body(found.cell.body) == cell.body_json
                    except DataDamaged:
                        refused += 1
    assert refused > 60, "the flips hit nothing"


def test_no_flipped_bit_of_an_entry_shortens_a_row(place: Path) -> None:
    """A row of several cells ends at an entry that is not its row's any more."""
    row_key = CELLS[77].row_key
    wanted = ["BASE", "STATUS", "TIP"]
    triples = [CELLS[77]._replace(column_name=column).triple for column in wanted]
    with closing(opened(place)) as engine:
        for column in wanted[1:]:
            engine.put([cell._replace(column_name=column) for cell in CELLS])
    with closing(sqlite3.connect(place / CELLS_FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = (place / CELLS_FILE).read_bytes()
    refused = 0
    for column in wanted:
        entry = re.escape(row_key + column.encode()) + rb"[^{]{0,8}"
        spans = [found.span() for found in re.finditer(entry, data, re.DOTALL)]
        for start, end in spans:
            for bit in range(start * 8 - 40, end * 8):
                damaged = bytearray(data)
                damaged[bit // 8] ^= 1 << bit % 8
                (place / CELLS_FILE).write_bytes(damaged)
                with closing(opened(place)) as engine:
                    asks: list[Callable[[], list[StoredCell]]] = [
                        lambda: [each.cell for each in engine.row([row_key])[0]],
                        lambda: engine.row_cells(row_key),
                        lambda: [each.cell for each in engine.get(triples) if each is not None],
                    ]
                    for ask in asks:
                        try:
                            found = sorted(cell.column_name for cell in ask())
                            assert found == wanted, f"bit {bit} of the entry at {start}"
                        except DataDamaged:
                            refused += 1
    assert refused > 60, "the flips hit nothing"


def test_a_body_that_has_become_a_number_is_an_error_of_ours(place: Path) -> None:
    with closing(sqlite3.connect(place / CELLS_FILE)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE name = 'cell'"
        )
    run(place, "UPDATE cell SET body = 7 WHERE position = 5")
    with (
        closing(opened(place)) as engine,
        pytest.raises(DataDamaged, match="added_id 5 of shard 0"),
    ):
        log(engine)


def test_a_kept_exception_shows_no_reader_an_old_snapshot(tmp_path: Path) -> None:
    """Its traceback has a statement with more rows to come: on that connection every later read
    would be of the statement's moment, and acknowledged cells not there."""
    cells = rides(0, 3_000)
    with closing(SqliteEngine(tmp_path / "trips", "trips", 1)) as engine:
        engine.put(cells[:2_000])
        with closing(sqlite3.connect(tmp_path / "trips" / CELLS_FILE)) as file:
            file.execute("UPDATE cell SET created_at_us = 7 WHERE position = 5")
            file.commit()
        kept: list[DataDamaged] = []
        for number, cell in enumerate(cells[2_000:2_010], 2_000):
            with pytest.raises(DataDamaged) as error:
                engine.scan(0, 0, 1_000)
            kept.append(error.value)
            engine.put([cell])
            assert engine.heads()[0].watermark == number + 1
            assert [each.added_id for each in engine.scan(0, number, 1)] == [number]
            assert engine.get([cell.triple]) != [None]
        assert len(kept) == 10


def test_a_kept_exception_refuses_no_later_write(tmp_path: Path) -> None:
    """Another process has written since the statement that the error's traceback keeps."""
    cells = rides(0, 2_010)
    with (
        closing(SqliteEngine(tmp_path / "trips", "trips", 1)) as engine,
        closing(SqliteEngine(tmp_path / "trips", "trips", 1)) as other,
    ):
        engine.put(cells[:2_000])
        kept: list[ValueError] = []
        for first in range(2_000, 2_010, 2):
            with pytest.raises(ValueError, match="within the transaction") as error:
                _fail_in_a_write(engine)
            kept.append(error.value)
            assert other.put([cells[first]])[0].outcome is Outcome.STORED
            assert engine.put([cells[first + 1]])[0].outcome is Outcome.STORED
        assert len(kept) == 5
        assert engine.heads()[0].watermark == 2_010


def _fail_in_a_write(engine: SqliteEngine) -> None:
    with engine._file.write() as connection:
        rows = connection.execute("SELECT * FROM cell")
        next(rows)
        raise ValueError("within the transaction")
