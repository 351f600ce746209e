"""A table takes rows of the logs that it knows, and compares its last rows before it knows another
one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cellfeed.consumers.warehouse.cell_rows import WarehouseRow
from cellfeed.consumers.warehouse.source import TableSource
from cellfeed.consumers.warehouse.table import make_table
from cellfeed.store.errors import ProtectData, Unavailable

FIRST, SECOND = "eb2fb697-3972-1db8-91b2-913eb1541806", "b7c47e09-115b-ac67-d48d-15715daf87d1"


def row(shard: int, added_id: int, ref_key: int = 1, body: bytes = b"{}") -> WarehouseRow:
    return WarehouseRow(
        shard, added_id, bytes([shard] * 16), "BASE", ref_key, 1_700_000_000_000_000, body
    )


LAST = {0: (9, row(0, 9)), 3: (4, row(3, 4))}


@pytest.fixture
def source(tmp_path: Path) -> TableSource:
    make_table(tmp_path, "trips")
    return TableSource(tmp_path)


def never(shard: int, offset: int) -> WarehouseRow | None:
    raise AssertionError((shard, offset))


def holds(
    cells: Mapping[tuple[int, int], WarehouseRow],
) -> Callable[[int, int], WarehouseRow | None]:
    return lambda shard, offset: cells.get((shard, offset))


def test_a_table_without_rows_takes_the_first_log_that_comes_and_knows_it_afterwards(
    source: TableSource,
) -> None:
    assert source.accept(FIRST, dict, never) == FIRST
    assert source.known() == [FIRST]
    assert source.accept(FIRST, lambda: LAST, never) == FIRST  # no look at either: it is known


def test_a_log_with_the_same_last_rows_is_accepted_although_their_bodies_were_erased(
    source: TableSource,
) -> None:
    source.accept(FIRST, dict, never)
    same = {(0, 9): row(0, 9, body=b'{"erased":true}'), (3, 4): row(3, 4)}
    assert source.accept(SECOND, lambda: LAST, holds(same)) == SECOND
    assert source.known() == sorted([FIRST, SECOND])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({(0, 9): row(0, 9), (3, 4): row(3, 4, ref_key=2)}, "has cell"),
        ({(0, 9): row(0, 9)}, "has no record there"),
        ({}, "has no record there"),
    ],
)
def test_a_log_whose_last_rows_differ_or_are_missing_is_refused_with_both_ids(
    source: TableSource, found: dict[tuple[int, int], WarehouseRow], says: str
) -> None:
    source.accept(FIRST, dict, never)
    with pytest.raises(ProtectData, match=says) as refused:
        source.accept(SECOND, lambda: LAST, holds(found))
    assert FIRST in str(refused.value)
    assert SECOND in str(refused.value)
    assert source.known() == [FIRST]


@pytest.mark.parametrize("cluster_id", [None, "", "../escape", "a" * 65])
def test_a_cluster_that_does_not_give_its_id_is_asked_again(
    source: TableSource, cluster_id: str | None
) -> None:
    with pytest.raises(Unavailable, match="does not report its identity"):
        source.accept(cluster_id, dict, never)
    assert source.known() == []
