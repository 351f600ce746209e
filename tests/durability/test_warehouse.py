"""The warehouse table after every power cut of a real run: rows that were committed are there, each
once, as a prefix of the log (I16)."""

from __future__ import annotations

import pytest

from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import make_table
from tests.durability.conftest import Cuts
from tests.durability.programs import ROWS
from tests.support.warehouse_log import SHARD, Log, assert_prefix, feed

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_rows_that_were_committed_survive_a_power_cut(cuts: Cuts) -> None:
    log, most = Log(ROWS), 0
    for cut in cuts("warehouse"):
        committed = max((int(line.split()[1]) for line in cut.said), default=0)
        directory = cut.place / "table"
        make_table(directory, "trips")
        loader = ShardLoader(directory, SHARD)
        assert loader.committed.next_id >= committed, f"{cut}: committed rows are lost"
        assert assert_prefix(directory, log) >= committed
        feed(loader, log, len(ROWS))
        loader.flush()
        assert assert_prefix(directory, log) == len(ROWS), (
            f"{cut}: the shard cannot be loaded to its end"
        )
        most = max(most, committed)
    assert most == 39
