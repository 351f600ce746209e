"""Followers and an erased row: triggers pass it over, its parked cells go, a warehouse table and
its latest view, records and views."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.events.envelope import AvroFormat, JsonFormat, decode_record
from cellfeed.bridge.events.erased_records import erased_headers
from cellfeed.bridge.events.record_batch import encode_record_batch
from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.bridge.events.views import Condition, View, ViewReader
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.retry import RetryPolicy
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON, Cell, StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import DataDamaged
from tests.support.trigger_steps import GROUP, Worker, row

ROW = UUID(int=7)
SECRET = "a-secret-of-somebody"


def erased_log(datastore: Datastore) -> list[StoredCell]:
    """A log of one shard: an erased row, between and behind cells of another, with the cell that
    reports it."""
    datastore.put_cells(
        [
            (uuid.UUID(int=8), "BASE", 1, {"n": 1}),
            (ROW, "BASE", 1, {"n": 2}),
            (ROW, "NOTES", 1, {"n": 3}),
        ]
    )
    datastore.erase_row(ROW)
    datastore.put_cells([(uuid.UUID(int=8), "BASE", 2, {"n": 4})])
    return datastore.engine.scan(0, 0, 100)


@pytest.fixture
def log(tmp_path: Path) -> list[StoredCell]:
    with Datastore.open_embedded(tmp_path / "log", shards=1) as datastore:
        return erased_log(datastore)


@pytest.mark.parametrize("event_format", [AvroFormat(1), JsonFormat()])
def test_a_batch_has_a_null_value_for_every_cell_without_a_body(
    log: list[StoredCell], event_format: AvroFormat | JsonFormat
) -> None:
    data = encode_record_batch(event_format, 0, log, base_offset=0, next_offset=5, leader_epoch=0)
    records = list(decode_record_batches(data))
    assert [(record.offset, record.value is None) for record in records] == [
        (0, False),
        (1, True),
        (2, True),
        (3, True),
        (4, False),
    ]
    assert [record.key for record in records] == [row_key_text(cell.row_key) for cell in log]
    assert [record.timestamp_ms for record in records] == [
        cell.created_at_us // 1000 for cell in log
    ]
    for cell, record in zip(log, records, strict=True):
        headers = {name: value for name, value in erased_headers(cell) if isinstance(value, bytes)}
        event = decode_record(0, record.key, record.value, headers, record.timestamp_ms)
        assert (event.added_id, event.row_key, event.column_name, event.ref_key) == (
            cell.added_id,
            cell.row_key,
            cell.column_name,
            cell.ref_key,
        )
        assert (event.body_json == ERASED_JSON) == (record.value is None)


def test_a_null_value_of_no_cell_is_damage(log: list[StoredCell]) -> None:
    key = row_key_text(log[0].row_key)
    whole = {"added_id": b"1", "column_name": b"BASE", "ref_key": b"1"}
    assert decode_record(0, key, None, whole, 0).added_id == 1
    for key_of, headers in (
        (key, {}),
        (None, whole),
        (b"x", whole),
        (key, {**whole, "added_id": b"-1"}),
        (key, {**whole, "column_name": b""}),
    ):
        with pytest.raises(DataDamaged):
            decode_record(0, key_of, None, headers, 0)


def test_every_view_shows_an_erasures_entry_and_no_condition_matches_an_erased_body(
    log: list[StoredCell],
) -> None:
    def shown(view: View) -> list[int]:
        return [cell.added_id for cell in ViewReader(view).read(log)[0]]

    assert shown(View()) == [0, 1, 2, 3, 4]
    assert shown(View("BASE")) == [0, 1, 3, 4]
    assert shown(View("BASE", filter=[Condition("n", "exists")])) == [0, 3, 4]
    assert shown(View("NOTES")) == [2, 3]
    assert ViewReader(View(fields=["n"])).read(log)[1][1:4] == [ERASED_JSON] * 3


def test_triggers_pass_erased_cells_over_and_may_follow_erasures(datastore: Datastore) -> None:
    seen: list[tuple[UUID, str]] = []

    @trigger(column="BASE", group=GROUP)
    def work(row_key: UUID, cell: Cell) -> None:
        seen.append((row_key, str(cell.body)))

    @trigger(column=ERASED_COLUMN, group="erasures")
    def forget(row_key: UUID, cell: Cell) -> None:
        assert cell.erased
        seen.append((row_key, "erased"))

    datastore.put_cells([(row(0), "BASE", number, {"n": number}) for number in range(3)])
    datastore.erase_row(row(0))
    datastore.put_cells([(row(1), "BASE", 0, {"n": 9})])
    Worker(datastore, work).work()
    assert seen == [(row(1), "{'n': 9}")]
    Worker(datastore, forget).work()
    assert seen[1:] == [(row(0), "erased")]


def test_a_batch_trigger_passes_erased_cells_over(datastore: Datastore) -> None:
    seen: list[int] = []

    @trigger(column="BASE", group=GROUP, batch=10)
    def work(cells: Sequence[Cell]) -> None:
        seen.extend(cell.body["n"] for cell in cells)

    datastore.put_cells([(row(number % 2), "BASE", number, {"n": number}) for number in range(6)])
    datastore.erase_row(row(0))
    Worker(datastore, work).work()
    assert sorted(seen) == [1, 3, 5]


def test_parked_cells_of_an_erased_row_go_with_their_texts(datastore: Datastore) -> None:
    parked = ParkedCells(datastore.state)
    datastore.when_erased(parked.forget_row)

    @trigger(column="BASE", group=GROUP, retry=RetryPolicy(1, 0, 0))
    def work(row_key: UUID, cell: Cell) -> None:
        raise ValueError(f"cannot do {cell.body}")

    datastore.put_cells([(row(number), "BASE", 1, {"n": SECRET}) for number in range(2)])
    Worker(datastore, work).work()
    assert [SECRET in cell.error for cell in parked.all()] == [True, True]
    datastore.erase_row(row(0))
    assert [cell.row_key for cell in parked.all()] == [str(row(1))]


def test_a_warehouse_table_has_the_places_and_its_latest_view_leaves_the_row_out(
    log: list[StoredCell], tmp_path: Path
) -> None:
    make_table(tmp_path / "table", "trips")
    loader = ShardLoader(tmp_path / "table", 0)
    whole = StoredCell(1, ROW.bytes, "BASE", 1, log[1].created_at_us, b"")
    [early] = JsonFormat().encode_many(0, [whole], [row_key_text(ROW.bytes)], [b'{"n":2}'])
    for cell in log:
        headers = {name: value for name, value in erased_headers(cell) if isinstance(value, bytes)}
        record = next(
            decode_record_batches(
                encode_record_batch(
                    JsonFormat(),
                    0,
                    [cell],
                    base_offset=cell.added_id,
                    next_offset=cell.added_id + 1,
                    leader_epoch=0,
                )
            )
        )
        # The first cell of the row was loaded before it was erased.
        value = early if cell.added_id == 1 else record.value
        assert loader.add(cell.added_id, value, record.key, headers, record.timestamp_ms)
    loader.flush()
    table = WarehouseTable(tmp_path / "table")
    assert [(row.added_id, row.column_name, row.body_json) for row in table.rows()][1:4] == [
        (1, "BASE", b'{"n":2}'),
        (2, "NOTES", ERASED_JSON),
        (3, ERASED_COLUMN, ERASED_JSON),
    ]
    assert [row.created_at_us for row in table.rows()][2] == log[2].created_at_us // 1000 * 1000
    assert [
        (found["row_key"], found["ref_key"])
        for found in table.query("SELECT row_key, ref_key FROM latest")
    ] == [(str(UUID(int=8)), 2)]
