"""E28 on both engines and the test kit: a follower of the logs' ends is given each change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.heads import RANGE_SHARDS
from cellfeed.testing.failing_master import FailingMaster
from tests.support.local_mysql import EMPTY
from tests.support.mariadb_cluster import SHARDS, cells_of_shard
from tests.support.shard_rows import cell_of_shard

EngineMaker = Callable[[], Engine]


@pytest.fixture(params=["sqlite", "mysql", "mysql server", "test kit"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineMaker]:
    opened: list[Engine] = []
    address = (
        request.getfixturevalue(EMPTY[request.param]).address if request.param in EMPTY else None
    )

    def open_one() -> Engine:
        engine: Engine
        if address is not None:
            engine = MySqlEngine(MySqlServer(address), "trips", SHARDS, create=True)
        else:
            engine = SqliteEngine(tmp_path, "trips", SHARDS)
        opened.append(FailingMaster(engine) if request.param == "test kit" else engine)
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.close()


def changed(before: dict[int, Head], after: dict[int, Head]) -> dict[int, Head]:
    return {shard: head for shard, head in after.items() if before[shard] != head}


def test_e28_every_change_of_a_head_is_given_although_another_process_made_it(
    open_engine: EngineMaker,
) -> None:
    mine, other = open_engine(), open_engine()
    heads, mark = mine.heads_since(None)
    assert heads == mine.heads()
    changes: list[Callable[[], object]] = [
        lambda: mine.put(cells_of_shard(1, 0, 3)),
        lambda: other.put([*cells_of_shard(0, 0, 1), *cells_of_shard(SHARDS - 1, 0, 2)]),
        lambda: other.trim(1, 2),
        lambda: mine.erase(cells_of_shard(SHARDS - 1, 0, 1)[0].row_key),
    ]
    for change in changes:
        change()
        after = mine.heads()
        expected = changed(heads, after)
        assert expected
        given, mark = mine.heads_since(mark)
        assert expected.items() <= given.items() <= after.items()
        heads = after
        assert mine.heads_since(mark)[0] == {}


@pytest.mark.parametrize("open_engine", ["sqlite", "mysql"], indirect=True)
def test_e28_a_commit_inside_a_look_is_in_that_look_or_in_the_next_one(
    open_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = open_engine(), open_engine()
    _, mark = mine.heads_since(None)
    token_of, puts = mine.change_token, iter(range(100))

    def put() -> None:
        other.put([cells_of_shard(2, next(puts), 1)[0]])

    def put_first() -> int:
        put()
        return token_of()

    def put_behind() -> int:
        token = token_of()
        put()
        return token

    for change_token in (put_first, put_behind, put_first):
        with monkeypatch.context() as patched:
            patched.setattr(mine, "change_token", change_token)
            first, mark = mine.heads_since(mark)
        second, mark = mine.heads_since(mark)
        assert (first | second)[2] == other.heads()[2]


def test_only_the_ranges_that_changed_are_read(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path, "trips", 3 * RANGE_SHARDS + 1)
    try:
        heads, mark = engine.heads_since(None)
        assert list(heads) == list(range(3 * RANGE_SHARDS + 1))
        for shard in (0, RANGE_SHARDS - 1, RANGE_SHARDS, 3 * RANGE_SHARDS):
            engine.put([cell_of_shard(shard, 3 * RANGE_SHARDS + 1, 1)])
            given, mark = engine.heads_since(mark)
            assert given[shard].watermark == 1
            assert {each // RANGE_SHARDS for each in given} == {shard // RANGE_SHARDS}
    finally:
        engine.close()
