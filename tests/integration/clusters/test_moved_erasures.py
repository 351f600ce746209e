"""A shard's knowledge of erased rows moves with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.errors import RowErased
from tests.support.mariadb_cluster import TestCluster
from tests.support.move_steps import SHARD, cells, move, open_engine, shown

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


def test_a_shard_that_moved_still_refuses_puts_to_an_erased_row(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    erased, other = cells(1, 2)
    engine.put([erased, other])
    engine.erase(erased.row_key)
    shown(engine, 3)
    for target in ("c2", "c1"):
        move(clusters, engine, target)
        [refused, kept] = engine.put([erased._replace(ref_key=9), other])
        assert refused.outcome is Outcome.FAILED
        assert isinstance(refused.error, RowErased)
        assert kept.outcome is Outcome.EXISTS
    assert engine.heads()[SHARD].next_added_id == 3
