"""Puts of cells, in process and over HTTP, over both engines."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from cellfeed.store.api import CellStore
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.cells.token import Token
from cellfeed.store.errors import (
    CellConflict,
    InvalidBody,
    InvalidColumn,
    InvalidRefKey,
    InvalidRequest,
    InvalidRowKey,
)
from cellfeed.store.limits import BATCH_CELLS_MAX, READ_KEYS_MAX
from tests.support.odd_bodies import ODD_BODIES


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
def test_a_body_is_returned_as_it_was_put(
    store: CellStore, row: UUID, body: dict[str, Any]
) -> None:
    result = store.put_cell(row, "BASE", 1, body)
    assert result.outcome is Outcome.STORED
    found = store.get_cell(row, "BASE", 1)
    assert found is not None
    assert found.body == body
    assert (found.row_key, found.column_name, found.ref_key, found.shard, found.added_id) == (
        row,
        "BASE",
        1,
        result.shard,
        result.added_id,
    )
    assert abs(found.created_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_put_again_with_the_same_body_exists_with_the_same_id(
    store: CellStore, row: UUID
) -> None:
    first = store.put_cell(row, "BASE", 1, {"b": 1, "a": 2})
    again = store.put_cell(str(row).upper(), "BASE", 1, {"a": 2, "b": 1})
    assert (again.outcome, again.shard, again.added_id) == (
        Outcome.EXISTS,
        first.shard,
        first.added_id,
    )


def test_a_result_has_the_token_of_the_cells_place(store: CellStore, row: UUID) -> None:
    stored = store.put_cell(row, "BASE", 1, {"a": 1})
    again, conflict, other = store.put_cells(
        [(row, "BASE", 1, {"a": 1}), (row, "BASE", 1, {"a": 2}), (row, "BASE", 2, {})]
    )

    assert stored.token is not None
    assert stored.token.partition(":")[2] == f"{stored.shard}.{stored.added_id}"
    assert again.token == stored.token
    assert conflict.token is None
    assert str(Token.of([stored, again, other])) == f"{stored.token}-{other.added_id}"


def test_another_body_for_the_same_key_is_a_conflict(store: CellStore, row: UUID) -> None:
    store.put_cell(row, "BASE", 1, {"a": 1})
    with pytest.raises(CellConflict, match="written once") as caught:
        store.put_cell(row, "BASE", 1, {"a": 2})
    assert caught.value.definite
    assert not caught.value.retriable
    found = store.get_cell(row, "BASE", 1)
    assert found is not None
    assert found.body == {"a": 1}


def test_a_batch_gives_a_result_per_item_in_order(store: CellStore) -> None:
    a, b = uuid4(), uuid4()
    store.put_cell(a, "BASE", 1, {"n": 0})
    results = store.put_cells(
        [
            (a, "BASE", 1, {"n": 0}),
            (b, "BASE", 1, {"n": 1}),
            (a, "BASE", 1, {"n": 2}),
            ("no uuid", "BASE", 1, {}),
            (b, "BA\x00SE", 1, {}),
            (b, "BASE", "1", {}),  # type: ignore[list-item]
            (b, "BASE", 2, {"x": math.nan}),
            (b, "BASE", 1, {"n": 1}),
            (a, "BASE"),  # type: ignore[list-item]
            (b, "STATUS", 1, {"n": 3}),
        ]
    )
    outcomes = [result.outcome.value for result in results]
    assert outcomes == [
        "exists",
        "stored",
        "conflict",
        "failed",
        "failed",
        "failed",
        "failed",
        "exists",
        "failed",
        "stored",
    ]
    errors = [type(result.error) for result in results]
    none = type(None)
    assert errors == [
        none,
        none,
        CellConflict,
        InvalidRowKey,
        InvalidColumn,
        InvalidRefKey,
        InvalidBody,
        none,
        InvalidRequest,
        none,
    ]
    assert [result.shard for result in results[3:6]] == [None, store.shard_of(b), store.shard_of(b)]
    assert results[7].added_id == results[1].added_id


def test_an_empty_batch_is_valid(store: CellStore) -> None:
    assert store.put_cells([]) == []
    assert store.get_cells([]) == []
    assert store.get_cells_latest([]) == []
    assert store.get_rows([]) == []
    assert store.get_cells_for_shards({}) == {}


@pytest.mark.parametrize("count", [BATCH_CELLS_MAX, 2 * BATCH_CELLS_MAX + 1])
def test_a_batch_of_any_size_is_written_whole(store: CellStore, count: int) -> None:
    cells = [(uuid4(), "BASE", 1, {"n": n}) for n in range(count)]
    results = store.put_cells(cells)
    assert {result.outcome for result in results} == {Outcome.STORED}
    keys = [(key, column, ref_key) for key, column, ref_key, _ in cells]
    found = [
        cell
        for start in range(0, count, READ_KEYS_MAX)
        for cell in store.get_cells(keys[start : start + READ_KEYS_MAX])
    ]
    assert [cell and cell.body for cell in found] == [body for *_, body in cells]
    assert [cell and (cell.shard, cell.added_id) for cell in found] == [
        (result.shard, result.added_id) for result in results
    ]


def test_many_large_bodies_in_one_call_are_written(store: CellStore) -> None:
    cells = [(uuid4(), "BASE", 1, {"x": "y" * 900_000, "n": n}) for n in range(20)]
    assert {result.outcome for result in store.put_cells(cells)} == {Outcome.STORED}
