"""Bodies near their limit on a real MariaDB that takes no larger packets than it must: many at once
are several transactions, never one too large."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.server_rules import PACKET_BYTES_MIN
from cellfeed.store.limits import BATCH_BYTES_MAX, GROUP_BYTES_MAX
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration

PUTS = 45
SHARDS = 4


class NotedGroups(MySqlEngine):
    """Notes the body bytes of each transaction."""

    groups: list[int]

    def put(self, cells: Sequence[NewCell], terms: object = None) -> list[PutResult]:
        self.groups.append(sum(len(cell.body_json) for cell in cells))
        return super().put(cells)


@pytest.fixture
def small_packets(empty_mariadb: MariaDB) -> Iterator[MariaDB]:
    [(before,)] = empty_mariadb.sql("SELECT @@GLOBAL.max_allowed_packet")
    empty_mariadb.sql(f"SET GLOBAL max_allowed_packet = {PACKET_BYTES_MIN}")
    yield empty_mariadb
    empty_mariadb.sql(f"SET GLOBAL max_allowed_packet = {before}")


def large_cells() -> list[NewCell]:
    """Bodies that no compression makes much smaller than half."""
    return [
        new_cell(UUID(int=n), "BASE", 1, {"n": random.Random(n).randbytes(450_000).hex()})
        for n in range(PUTS)
    ]


def test_many_large_puts_at_once_are_committed_in_groups_of_bounded_bytes(
    small_packets: MariaDB,
) -> None:
    engine = NotedGroups(MySqlServer(small_packets.url), "trips", SHARDS, create=True)
    engine.groups = []
    wanted = large_cells()
    with Datastore(engine) as datastore:
        answers = [datastore.put_soon([cell]) for cell in wanted]
        assert [answer.result(120)[0].outcome for answer in answers] == [Outcome.STORED] * PUTS
        assert sum(engine.groups) == sum(len(cell.body_json) for cell in wanted)
        assert max(engine.groups) <= GROUP_BYTES_MAX
        assert max(engine.groups) > GROUP_BYTES_MAX // 2, (
            "they were waiting together, so groups grew up to the limit"
        )
        found = engine.get([cell.triple for cell in wanted])
        assert all(found)


def test_large_buffered_cells_are_kept_and_given_back_a_bounded_piece_at_a_time(
    small_packets: MariaDB,
) -> None:
    wanted = large_cells()
    assert sum(len(cell.body_json) for cell in wanted) > PACKET_BYTES_MIN
    with closing(
        MySqlEngine(MySqlServer(small_packets.url), "trips", SHARDS, create=True)
    ) as engine:
        engine.buffer.add("c2", wanted)
        assert engine.buffer.accept("c2", wanted) == [True] * PUTS
        after, given = 0, list[NewCell]()
        while piece := engine.buffer.waiting("c2", after, 1_000, 0.0):
            after = piece[-1].buffer_id
            assert sum(len(waiting.cell.body_json) for waiting in piece) <= BATCH_BYTES_MAX
            given += [waiting.cell for waiting in piece]
        assert given == wanted


def test_a_buffered_body_that_shrank_a_thousandfold_counts_with_its_own_size(
    small_packets: MariaDB,
) -> None:
    wanted = [
        new_cell(UUID(int=n), "BASE", 1, {"n": n, "text": "x" * 1_000_000}) for n in range(20)
    ]
    with closing(
        MySqlEngine(MySqlServer(small_packets.url), "trips", SHARDS, create=True)
    ) as engine:
        engine.buffer.add("c2", wanted)
        first = engine.buffer.waiting("c2", 0, 1_000, 0.0)
        assert 0 < len(first) < len(wanted)
        assert sum(len(waiting.cell.body_json) for waiting in first) <= BATCH_BYTES_MAX
