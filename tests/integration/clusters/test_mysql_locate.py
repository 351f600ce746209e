"""The search by time in a shard's log on a real server: one statement, also where ids were left
out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from typing import Any
from uuid import UUID

import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.mysql.cells import sql_moment
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import ShardMoving
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration

SHARDS = 4
CELLS = 200
DISTINCT = 60
"""Moments that the cells have: some have several, some moments have none."""


@pytest.fixture
def times(empty_mariadb: MariaDB) -> list[int]:
    """Of each cell of shard 1, by id, its created_at in microseconds."""
    of_shard = (key for n in count() if shard_of((key := UUID(int=n)).bytes, SHARDS) == 1)
    with closing(MySqlEngine(MySqlServer(empty_mariadb.url), "trips", SHARDS, create=True)) as made:
        made.put([new_cell(key, "BASE", 1, {"n": 1}) for key in islice(of_shard, CELLS)])
        start_us = made.heads()[1].last_created_at_us
    chance = random.Random(7)
    moments = sorted(start_us + 10 * chance.randrange(DISTINCT) for _ in range(CELLS))
    for added_id, moment_us in enumerate(moments):
        empty_mariadb.sql(
            f"UPDATE trips_0001.cell SET created_at = {sql_moment(moment_us)} WHERE added_id ="
            f" {added_id}"
        )
    return moments


@pytest.fixture
def engine(empty_mariadb: MariaDB, times: list[int]) -> Iterator[MySqlEngine]:
    with closing(MySqlEngine(MySqlServer(empty_mariadb.url), "trips", SHARDS)) as opened:
        yield opened


def test_a_moment_is_located_by_one_statement(
    engine: MySqlEngine, times: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.locate(1, times[0])
    sent: list[object] = []
    execute: Any = vars(Connection)["_execute_command"]

    def counted(self: Any, command: int, sql: str | bytes) -> None:
        sent.append(sql)
        execute(self, command, sql)

    monkeypatch.setattr(Connection, "_execute_command", counted)
    for moment_us in range(times[0] - 5, times[-1] + 15, 5):
        sent.clear()
        assert engine.locate(1, moment_us) == sum(each < moment_us for each in times)
        assert len(sent) == 1


def test_ids_that_were_left_out_lead_to_the_next_cell(
    engine: MySqlEngine, times: list[int], empty_mariadb: MariaDB
) -> None:
    """As a restore leaves them out (E23): where the search begins, and at the end."""
    gone = {*range(40, 160), *range(190, CELLS)}
    ids = ",".join(map(str, gone))
    empty_mariadb.sql(f"DELETE FROM trips_0001.cell WHERE added_id IN ({ids})")
    left = [(added_id, at_us) for added_id, at_us in enumerate(times) if added_id not in gone]
    for moment_us in range(times[0] - 5, times[-1] + 15, 5):
        at = engine.locate(1, moment_us)
        assert [added_id for added_id, _ in left if added_id < at] == [
            added_id for added_id, at_us in left if at_us < moment_us
        ]


def test_a_shard_that_moved_away_is_no_empty_log(
    engine: MySqlEngine, empty_mariadb: MariaDB
) -> None:
    empty_mariadb.sql("DELETE FROM trips_meta.shard_counter WHERE shard = 2")
    with pytest.raises(ShardMoving, match="does not hold shard 2"):
        engine.locate(2, 0)
