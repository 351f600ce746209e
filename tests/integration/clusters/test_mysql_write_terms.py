"""A put carries the leader epoch that its writer believes in; a shard of another epoch refuses it,
though the server's role has that epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import msgspec
import pytest

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.roles import Role, write_role
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.guard_sql import ROLE_KEY
from cellfeed.store.errors import StaleWriter
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration

CELL = NewCell(UUID(int=1).bytes, "BASE", 1, b"{}")


@pytest.fixture
def engine(empty_mariadb: MariaDB) -> Iterator[MySqlEngine]:
    with closing(MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 3, create=True)) as opened:
        empty_mariadb.sql("UPDATE trips_meta.shard_counter SET leader_epoch = 5")
        yield opened


@pytest.mark.parametrize("epoch", [4, 6])
def test_a_write_of_another_epoch_is_refused_and_nothing_is_written(
    engine: MySqlEngine, epoch: int
) -> None:
    terms = WriteTerms(epoch, semi_sync=False)
    write_role(engine.state, Role("c1", "a", epoch))
    with pytest.raises(StaleWriter, match=f"is in leader epoch 5, the write came with {epoch}"):
        engine.put([CELL], terms)
    assert engine.get([CELL.triple]) == [None]
    assert {head.next_added_id for head in engine.heads().values()} == {0}
    engine.state.commit({ROLE_KEY: msgspec.json.encode(Role("c1", "a", 5))}, None, terms)
    [result] = engine.put([CELL], WriteTerms(5, semi_sync=False))
    assert (result.outcome, result.added_id) == (Outcome.STORED, 0)
