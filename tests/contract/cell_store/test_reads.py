"""Reads of cells, rows and logs, in process and over HTTP, over both engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from cellfeed.store.api import CellStore, ReadFrom
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import Trimmed
from tests.support.odd_bodies import ODD_BODIES

if TYPE_CHECKING:
    from cellfeed.store.datastore import Datastore


def test_the_latest_cell_has_the_highest_ref_key_in_any_order_of_puts(
    store: CellStore, row: UUID
) -> None:
    for ref_key in (5, -(1 << 63), (1 << 63) - 1, 0):
        store.put_cell(row, "BASE", ref_key, {"ref": ref_key})
    latest = store.get_cell_latest(row, "BASE")
    assert latest is not None
    assert latest.ref_key == (1 << 63) - 1
    assert [store.get_cell(row, "BASE", ref) is not None for ref in (5, -(1 << 63), 1)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "column",
    ["BASE", "a b+c%2F/d?e&f=g#h", "Ünïcode-🚕", "..", '"quoted"\\', "x" * 128, " ", "𝔘" * 32],
)
def test_a_column_name_differs_from_every_other(store: CellStore, row: UUID, column: str) -> None:
    store.put_cell(row, column, 1, {"column": column})
    store.put_cell(
        row, column.swapcase() if column.swapcase() != column else "other", 1, {"column": "other"}
    )
    found = store.get_cell_latest(row, column)
    assert found is not None
    assert found.body == {"column": column}
    assert column in store.get_row(row)
    [batch] = store.get_cells([(row, column, 1)])
    assert batch == found


def test_a_row_is_the_latest_cell_of_each_column(store: CellStore, row: UUID) -> None:
    for column, ref_key in (("BASE", 1), ("BASE", 2), ("STATUS", 1)):
        store.put_cell(row, column, ref_key, {"at": ref_key})
    assert {column: cell.ref_key for column, cell in store.get_row(row).items()} == {
        "BASE": 2,
        "STATUS": 1,
    }
    assert store.get_row(uuid4()) == {}


def test_a_read_of_a_missing_cell_gives_none(store: CellStore, row: UUID) -> None:
    assert store.get_cell(row, "BASE", 1) is None
    assert store.get_cell_latest(row, "BASE") is None
    assert store.get_cells([(row, "BASE", 1)]) == [None]
    assert store.get_cells_latest([(row, "BASE")]) == [None]
    assert store.get_rows([row]) == [{}]


def test_a_shards_log_is_read_from_any_location(store: CellStore) -> None:
    keys = [key for key in (uuid4() for _ in range(400)) if store.shard_of(key) == 3][:10]
    start = store.heads()[3].next_added_id
    store.put_cells([(key, "BASE", 1, {"n": n}) for n, key in enumerate(keys)])
    whole = store.get_cells_for_shard(3, start)
    assert [cell.row_key for cell in whole.cells] == keys
    assert [cell.added_id for cell in whole.cells] == list(range(start, start + len(keys)))
    assert whole.next_location == whole.head.watermark == start + len(keys)
    piece = store.get_cells_for_shard(3, start + 2, 3)
    assert piece.cells == whole.cells[2:5]
    assert piece.next_location == start + 5
    end = store.get_cells_for_shard(3, whole.next_location)
    assert (end.cells, end.next_location) == ([], whole.next_location)


def test_a_timestamp_is_a_location(store: CellStore) -> None:
    key = next(key for key in iter(uuid4, None) if store.shard_of(key) == 5)
    store.put_cell(key, "BASE", 1, {})
    cell = store.get_cell(key, "BASE", 1)
    assert cell is not None
    odd_zone = timezone(timedelta(hours=5, minutes=53, seconds=28))
    for moment in (cell.created_at, cell.created_at.astimezone(odd_zone)):
        found = store.get_cells_for_shard(5, moment)
        assert all(each.created_at >= cell.created_at for each in found.cells)
        assert cell in found.cells
    long_ago = store.get_cells_for_shard(5, datetime(1, 1, 1, tzinfo=UTC), 1)
    assert [each.added_id for each in long_ago.cells] == [0]
    far = store.get_cells_for_shard(5, datetime(9999, 12, 31, tzinfo=UTC))
    assert (far.cells, far.next_location) == ([], store.heads()[5].next_added_id)


def test_a_log_is_not_read_from_below_where_it_was_trimmed(
    store: CellStore, datastore: Datastore
) -> None:
    shard = 7
    keys = [key for key in (uuid4() for _ in range(600)) if store.shard_of(key) == shard][:10]
    results = store.put_cells([(key, "BASE", 1, {}) for key in keys])
    start = (results[0].added_id or 0) + 4
    while datastore.trim(shard, start) < start:
        pass
    assert store.heads()[shard].log_start == start
    for location in (0, start - 1):
        with pytest.raises(Trimmed, match=f"begins at {start}"):
            store.get_cells_for_shard(shard, location)
        with pytest.raises(Trimmed):
            store.get_cells_for_shards({3: 0, shard: location})
    assert [cell.row_key for cell in store.get_cells_for_shard(shard, start).cells] == keys[4:]
    assert (
        store.get_cells_for_shard(shard, datetime(1, 1, 1, tzinfo=UTC), 1).cells[0].added_id
        == start
    )
    assert [cell is None for cell in store.get_cells_latest([(key, "BASE") for key in keys])] == [
        True
    ] * 4 + [False] * 6
    assert store.put_cell(keys[0], "BASE", 1, {}).outcome is Outcome.STORED


def test_many_shards_are_read_at_once(store: CellStore) -> None:
    heads = store.heads()
    keys = [uuid4() for _ in range(100)]
    store.put_cells([(key, "BASE", 1, {}) for key in keys])
    pieces = store.get_cells_for_shards(
        {shard: head.next_added_id for shard, head in heads.items()}, limit=200
    )
    assert {cell.row_key for piece in pieces.values() for cell in piece.cells} == set(keys)
    for shard, piece in pieces.items():
        assert piece == store.get_cells_for_shard(shard, heads[shard].next_added_id, 200)


def test_both_give_the_same_answers_about_the_same_cells(
    datastore: Datastore, remote: CellStore, row: UUID
) -> None:
    for ref_key, body in enumerate(ODD_BODIES):
        datastore.put_cell(row, "BASE", ref_key, body)
    triples = [(row, "BASE", ref_key) for ref_key in range(len(ODD_BODIES) + 1)]
    assert remote.get_cells(triples) == datastore.get_cells(triples)
    assert remote.get_cell_latest(row, "BASE") == datastore.get_cell_latest(row, "BASE")
    assert remote.get_cells_latest([(row, "BASE"), (row, "X")]) == datastore.get_cells_latest(
        [(row, "BASE"), (row, "X")]
    )
    assert remote.get_row(row) == datastore.get_row(row)
    assert remote.get_rows([row]) == datastore.get_rows([row])
    assert remote.heads() == datastore.heads()
    assert (remote.name, remote.shards, remote.shard_of(row)) == (
        datastore.name,
        datastore.shards,
        datastore.shard_of(row),
    )
    shard = datastore.shard_of(row)
    starts = {each: head.log_start for each, head in datastore.heads().items()}  # some are trimmed
    assert remote.get_cells_for_shard(shard, starts[shard]) == datastore.get_cells_for_shard(
        shard, starts[shard]
    )
    assert remote.get_cells_for_shards(starts) == datastore.get_cells_for_shards(starts)


@pytest.mark.parametrize("read_from", ["master", "minion", Replica.MINION])
def test_without_minions_reads_from_master_and_minion_are_of_the_same_store(
    store: CellStore, row: UUID, read_from: ReadFrom
) -> None:
    for ref_key in (1, 2):
        store.put_cell(row, "BASE", ref_key, {"at": ref_key})
    first, latest = store.get_cell(row, "BASE", 1), store.get_cell_latest(row, "BASE")
    assert first is not None
    assert latest is not None
    assert store.get_cell(row, "BASE", 1, read_from=read_from) == first
    assert store.get_cell_latest(row, "BASE", read_from=read_from) == latest
    assert store.get_row(row, read_from=read_from) == {"BASE": latest}
    assert store.get_cells([(row, "BASE", 1), (row, "BASE", 3)], read_from=read_from) == [
        first,
        None,
    ]
    assert store.get_cells_latest([(row, "BASE"), (row, "STATUS")], read_from=read_from) == [
        latest,
        None,
    ]
    assert store.get_rows([row, uuid4()], read_from=read_from) == [{"BASE": latest}, {}]
    assert store.get_cell_latest(row, "STATUS", read_from=read_from) is None
    assert not first.stale
    assert not latest.stale
