"""Erased rows, in process and over HTTP, over both engines."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from cellfeed.store.api import CellStore, ErasedRow
from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.errors import InvalidColumn, InvalidRowKey, RowErased


def test_an_erased_row_is_found_by_no_key_refuses_puts_and_keeps_its_places_in_the_log(
    store: CellStore, row: UUID
) -> None:
    other = uuid4()
    places = [store.put_cell(row, "BASE", ref_key, {"secret": ref_key}) for ref_key in range(3)]
    store.put_cell(other, "BASE", 1, {"kept": 1})
    shard = store.shard_of(row)
    erased = store.erase_row(row)
    assert (erased.shard, erased.cells) == (shard, 3)
    assert store.get_row(row) == {}
    assert store.get_cell(row, "BASE", 1) is None
    assert store.get_cell_latest(row, "BASE") is None
    assert store.get_cells([(row, "BASE", 2), (other, "BASE", 1)])[0] is None
    assert [list(found) for found in store.get_rows([row, other])] == [[], ["BASE"]]
    location = places[0].added_id
    assert location is not None
    piece = [
        cell
        for cell in store.get_cells_for_shard(shard, location, 1_000).cells
        if cell.row_key == row
    ]
    assert [(cell.column_name, cell.ref_key, cell.erased) for cell in piece] == [
        *(("BASE", n, True) for n in range(3)),
        (ERASED_COLUMN, 0, True),
    ]
    assert [cell.added_id for cell in piece] == [
        *(each.added_id for each in places),
        erased.added_id,
    ]
    with pytest.raises(RowErased, match="it has no body"):
        _ = piece[0].body
    with pytest.raises(RowErased, match="put under another row key") as refused:
        store.put_cell(row, "BASE", 1, {"secret": 1})
    assert (refused.value.definite, refused.value.retriable, refused.value.http_status) == (
        True,
        False,
        410,
    )
    assert [
        result.outcome for result in store.put_cells([(row, "NEW", 1, {}), (other, "NEW", 1, {})])
    ] == [Outcome.FAILED, Outcome.STORED]
    assert store.erase_row(row) == ErasedRow(shard, erased.added_id, 0)


def test_the_column_that_marks_erasures_takes_no_puts(store: CellStore, row: UUID) -> None:
    with pytest.raises(InvalidColumn, match="marks erased rows"):
        store.put_cell(row, ERASED_COLUMN, 0, {})
    with pytest.raises(InvalidRowKey):
        store.erase_row("nobody")
