"""The rows of a transaction in a master's binlog, as an archive keeps them."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from cellfeed.store.backups.binlogs import transaction_rows
from cellfeed.store.backups.binlogs.transaction_rows import TransactionRows
from cellfeed.store.cells.cell import StoredCell


def added(rows: TransactionRows, table: str, *values: dict[str, Any]) -> None:
    event = SimpleNamespace(
        schema="trips_0003" if table == "cell" else "trips_meta",
        table=table,
        rows=[{"values": each} for each in values],
    )
    rows.add(event, is_new=True)


def changed(
    rows: TransactionRows, table: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    event = SimpleNamespace(
        schema="trips_meta",
        table=table,
        rows=[{"before_values": before, "after_values": after}],
    )
    rows.add(event, is_new=False)


@pytest.fixture
def rows() -> TransactionRows:
    return TransactionRows({"trips_0003": 3}, "trips_meta")


def counter(log_start: int, leader_epoch: int = 2) -> dict[str, Any]:
    return {"shard": 3, "log_start": log_start, "leader_epoch": leader_epoch, "epoch_base": 10}


def test_a_trim_is_kept_with_the_place_where_the_log_starts_now(rows: TransactionRows) -> None:
    changed(rows, "shard_counter", counter(5), counter(9))
    assert rows.taken().log_starts == [(3, 9)]
    changed(rows, "shard_counter", counter(9), counter(9))
    assert rows.taken().is_empty, "nothing of the transaction before, and no trim"


def test_the_counter_of_a_shard_that_arrives_is_no_trim(rows: TransactionRows) -> None:
    added(rows, "shard_counter", counter(5))
    assert rows.taken().is_empty


def test_a_cell_has_its_whole_key_and_the_epoch_that_readers_see(
    rows: TransactionRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_rows, "stored_cell", lambda _, row: StoredCell(*row[:6]))
    cell = {
        "added_id": 7,
        "row_key": b"\x01" * 14,  # two zeros at its end are not in the binlog
        "column_name": b"BASE",
        "ref_key": 1,
        "created_at": datetime(2026, 1, 1),  # noqa: DTZ001 - as the library gives it
        "body": b"",
        "crc": -1,
    }
    added(rows, "cell", cell)
    changed(rows, "shard_counter", counter(5, 3), counter(5, 4))
    [kept] = rows.taken().cells
    assert kept.cell.row_key == b"\x01" * 14 + b"\0\0"
    assert (kept.shard, kept.leader_epoch, kept.cell.added_id) == (3, 14, 7)
    added(rows, "cell", cell)
    [kept] = rows.taken().cells
    assert kept.leader_epoch == -1, "the epoch of the transaction before says nothing of this one"
