"""A put over clusters: each cell's result in its place, with any fault of one cluster or one shard.
Clusters are values here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.clusters.serving.puts import ClusteredPuts
from cellfeed.store.errors import CellfeedError, ShardMoving, StorageUnavailable

SHARDS = 4


class Cluster:
    """``raises``: by shard why it takes nothing."""

    def __init__(self) -> None:
        self.raises: dict[int, CellfeedError] = {}
        self.written: list[NewCell] = []

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        for cell in cells:
            if error := self.raises.get(shard_of(cell.row_key, SHARDS)):
                raise error
        self.written += cells
        return [
            PutResult(Outcome.STORED, shard_of(cell.row_key, SHARDS), cell.ref_key)
            for cell in cells
        ]


class Placed:
    """Even shards are on the first cluster, odd ones on the second."""

    def __init__(self) -> None:
        self.clusters = [Cluster(), Cluster()]

    def name_of(self, shard: int) -> str:
        return f"c{shard % 2}"

    def cluster_of(self, shard: int) -> Cluster:
        return self.clusters[shard % 2]

    def retry_while_moving(self, call: Callable[[], None]) -> None:
        call()


def cell_of(shard: int, number: int) -> NewCell:
    row = next(UUID(int=n) for n in range(1_000) if shard_of(UUID(int=n).bytes, SHARDS) == shard)
    return NewCell(row.bytes, "BASE", number, b"{}")


@pytest.fixture
def placed() -> Placed:
    return Placed()


def put(placed: Placed, cells: Sequence[NewCell]) -> list[PutResult]:
    puts = ClusteredPuts(cast("Placement", placed), SHARDS, {}, 0)
    return puts.put(cells)


def test_results_stand_in_the_order_of_the_cells(placed: Placed) -> None:
    cells = [cell_of(shard, number) for number, shard in enumerate([1, 0, 3, 2, 0, 1])]
    assert [(each.shard, each.added_id) for each in put(placed, cells)] == [
        (1, 0),
        (0, 1),
        (3, 2),
        (2, 3),
        (0, 4),
        (1, 5),
    ]


def test_a_cluster_that_is_away_fails_only_its_own_cells(placed: Placed) -> None:
    placed.clusters[1].raises = {1: StorageUnavailable("away")}
    outcomes = [each.outcome for each in put(placed, [cell_of(0, 1), cell_of(1, 2)])]
    assert outcomes == [Outcome.STORED, Outcome.FAILED]


@pytest.mark.parametrize("moving", [0, 2])
def test_a_shard_that_moves_delays_no_other_of_its_cluster(placed: Placed, moving: int) -> None:
    placed.clusters[0].raises = {moving: ShardMoving("on its way")}
    results = put(placed, [cell_of(0, 1), cell_of(2, 2)])
    wanted = [Outcome.STORED, Outcome.STORED]
    wanted[moving // 2] = Outcome.FAILED
    assert [each.outcome for each in results] == wanted
    assert isinstance(results[moving // 2].error, ShardMoving)
    assert len(placed.clusters[0].written) == 1, "no cell is put twice"


def test_one_error_is_raised_when_no_cell_was_written(placed: Placed) -> None:
    placed.clusters[0].raises = dict.fromkeys((0, 2), ShardMoving("on its way"))
    with pytest.raises(ShardMoving):
        put(placed, [cell_of(0, 1), cell_of(2, 2)])
