"""The looks of a watcher at a server's counters: each gives the counters as they are, and names
those that changed since the look before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cellfeed.store.engines.contract.values import Head, Look
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.counters import RANGE_SHARDS
from cellfeed.store.engines.mysql.engine import MySqlEngine
from tests.support.local_mariadb import MariaDB
from tests.support.shard_rows import cell_of_shard

SHARDS = 2 * RANGE_SHARDS + 1
KEY = "cluster/role"
COUNTERS = "trips_meta.shard_counter"


@pytest.fixture
def engine(empty_mariadb: MariaDB) -> Iterator[MySqlEngine]:
    made = MySqlEngine(MySqlServer(empty_mariadb.url), "trips", SHARDS, create=True)
    with closing(made) as opened:
        yield opened


def shards_that_differ(before: Look, after: Look) -> set[int]:
    old, new = before.heads or {}, after.heads or {}
    return {shard for shard in old.keys() | new.keys() if old.get(shard) != new.get(shard)}


def test_each_look_gives_the_present_counters_and_names_the_changed_ones(
    engine: MySqlEngine, empty_mariadb: MariaDB
) -> None:
    look = engine.look(KEY, None)
    assert look.heads == engine.heads()
    unchanged = engine.look(KEY, look.token)
    assert (unchanged.heads, unchanged.token) == (None, look.token)

    first_range = ",".join(map(str, range(RANGE_SHARDS)))
    changes: list[Callable[[], object]] = [
        lambda: engine.put([cell_of_shard(shard, SHARDS, 1) for shard in (0, SHARDS - 1)]),
        lambda: engine.put([cell_of_shard(RANGE_SHARDS, SHARDS, 1)]),
        lambda: engine.trim(0, 1),
        lambda: engine.erase(cell_of_shard(RANGE_SHARDS, SHARDS, 1).row_key),
        # A promotion; a shard that leaves; another one; one that returns; a range that leaves.
        lambda: empty_mariadb.sql(f"UPDATE {COUNTERS} SET leader_epoch = 2 WHERE shard > 5"),
        lambda: empty_mariadb.sql(f"DELETE FROM {COUNTERS} WHERE shard = 7"),
        lambda: empty_mariadb.sql(f"DELETE FROM {COUNTERS} WHERE shard = {SHARDS - 1}"),
        lambda: empty_mariadb.sql(f"INSERT INTO {COUNTERS} (shard, next_added_id) VALUES (7, 9)"),
        lambda: empty_mariadb.sql(f"DELETE FROM {COUNTERS} WHERE shard IN ({first_range})"),
        lambda: empty_mariadb.sql(f"DELETE FROM {COUNTERS}"),
    ]
    for change in changes:
        change()
        after = engine.look(KEY, look.token)
        expected = {} if change is changes[-1] else engine.heads()
        assert after.heads == expected
        differ = shards_that_differ(look, after)
        assert differ
        assert after.changed is None or set(after.changed) == differ
        look = after


def test_a_look_reads_only_the_ranges_that_changed(
    engine: MySqlEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = engine.look(KEY, None)
    engine.put([cell_of_shard(RANGE_SHARDS + 1, SHARDS, 1)])
    read: list[dict[int, Head]] = []
    module = "cellfeed.store.engines.mysql.counters._heads"
    parsed = engine._counters.heads.__globals__["_heads"]

    def note(joined: str | None) -> dict[int, Head]:
        read.append(parsed(joined))
        return read[-1]

    monkeypatch.setattr(module, note)
    after = engine.look(KEY, look.token)
    assert [sorted(each) for each in read] == [list(range(RANGE_SHARDS, 2 * RANGE_SHARDS))]
    assert after.changed == {RANGE_SHARDS + 1}
