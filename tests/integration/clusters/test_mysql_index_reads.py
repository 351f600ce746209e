"""Reads of an index that wait for a node's fences: a node that lags answers nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.engines.contract.index_values import RowsBelow
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import StorageUnavailable
from tests.support.local_mariadb import MariaDB

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mariadb")]

ROW = UUID(int=1)


@pytest.fixture
def engine(empty_mariadb: MariaDB) -> Iterator[MySqlEngine]:
    with closing(MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 1, create=True)) as made:
        yield made


def test_a_node_that_has_the_log_and_not_the_fence_gives_no_cells(engine: MySqlEngine) -> None:
    engine.put([new_cell(ROW, "BASE", 1, {"n": 1})])
    indexes = engine.indexes
    indexes.set_fences({0: 500})

    def read(fence: int) -> tuple[int, int]:
        rows = [RowsBelow(0, [ROW.bytes], 1, fence)]
        return (
            len(indexes.latest_before(rows, ["BASE"])),
            len(indexes.cells_between(0, ["BASE"], 0, 1, fence)),
        )

    assert read(500) == (1, 1)
    with pytest.raises(StorageUnavailable, match="do not reach"):
        indexes.latest_before([RowsBelow(0, [ROW.bytes], 1, 501)], ["BASE"])
    with pytest.raises(StorageUnavailable, match="do not reach"):
        indexes.cells_between(0, ["BASE"], 0, 1, 501)
    indexes.set_fences({0: 501})
    assert read(501) == (1, 1), "the minion has come so far"
