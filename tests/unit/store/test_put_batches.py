"""Put calls cut into batches: every cell gets one result, and the results of the first batches
survive the failure of a later one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.arguments import checked_item
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.commit.put_batches import batches, put_in_batches
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from cellfeed.store.limits import BATCH_BYTES_MAX, BATCH_CELLS_MAX


def cells(count: int, text: str = "") -> list[NewCell]:
    return [new_cell(UUID(int=number), "BASE", 1, {"t": text}) for number in range(count)]


def stored(batch: Sequence[NewCell]) -> list[PutResult]:
    return [PutResult(Outcome.STORED, 0, int.from_bytes(cell.row_key)) for cell in batch]


@given(st.integers(0, 3 * BATCH_CELLS_MAX + 1))
def test_batches_are_the_cells_in_order_and_within_the_limit(count: int) -> None:
    whole = cells(1) * count
    cut = list(batches(whole))
    assert [cell for batch in cut for cell in batch] == whole
    assert all(1 <= len(batch) <= BATCH_CELLS_MAX for batch in cut)


def test_large_bodies_make_small_batches() -> None:
    large = cells(5, "x" * (BATCH_BYTES_MAX // 10)) * 10
    assert [
        sum(len(cell.body_json) for cell in batch) <= BATCH_BYTES_MAX for batch in batches(large)
    ] == [True] * 6


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(StorageUnavailable("away"), Outcome.FAILED), (OutcomeUnknown("no answer"), Outcome.UNKNOWN)],
)
def test_a_later_batch_that_fails_leaves_the_outcomes_of_the_first_ones(
    error: StorageUnavailable | OutcomeUnknown, outcome: Outcome
) -> None:
    calls: list[int] = []

    def put(batch: Sequence[NewCell]) -> list[PutResult]:
        calls.append(len(batch))
        if len(calls) == 2:
            raise error
        return stored(batch)

    results = put_in_batches(cells(3 * BATCH_CELLS_MAX), put, lambda _: 3)
    assert calls == [BATCH_CELLS_MAX] * 2, "the third is not begun"
    told = [result.outcome for result in results]
    assert (
        told
        == [Outcome.STORED] * BATCH_CELLS_MAX
        + [outcome] * BATCH_CELLS_MAX
        + [Outcome.FAILED] * BATCH_CELLS_MAX
    )


def test_the_first_batch_failing_is_the_error_of_the_call() -> None:
    def away(_: Sequence[NewCell]) -> list[PutResult]:
        raise StorageUnavailable("away")

    with pytest.raises(StorageUnavailable):
        put_in_batches(cells(2), away, lambda _: 3)


def test_a_refused_item_has_its_shard_when_its_row_key_is_valid() -> None:
    asked: list[int] = []

    def shards() -> int:
        asked.append(4)
        return 4

    key = UUID(int=7)
    short = checked_item((key, "BASE"), shards)
    assert isinstance(short, PutResult)
    assert (short.outcome, short.shard) == (Outcome.FAILED, shard_of(key.bytes, 4))
    items: list[Any] = [None, (), ("no key", "BASE", 1, {})]
    for item in items:
        refused = checked_item(item, shards)
        assert isinstance(refused, PutResult)
        assert refused.shard is None
    assert isinstance(checked_item((key, "BASE", 1, {}), shards), NewCell)
    assert asked == [4]  # a client asks a worker for the shards only when it needs them


def test_the_outcome_of_an_error_is_failed_only_when_nothing_was_written() -> None:
    definite, open_ended = StorageUnavailable("x"), OutcomeUnknown("x")
    assert PutResult.of_error(definite, 3) == PutResult(Outcome.FAILED, 3, error=definite)
    assert PutResult.of_error(open_ended, 3) == PutResult(Outcome.UNKNOWN, 3, error=open_ended)
