"""The promises L1 to L5 of a lake table, on both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.consumers.lake.appending import Outcome, append
from cellfeed.consumers.lake.contract import NotCommitted
from cellfeed.consumers.lake.open_table import find_lake_table
from cellfeed.consumers.lake.positions import Position
from cellfeed.consumers.lake.views import LakeView
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.lake_tables import FORMATS, addition, cell, make, place_of

pytestmark = pytest.mark.parametrize("kind", FORMATS)


def digest(shard: int, end: int) -> str:
    expected = ShardDigest()
    for added_id in range(end):
        _, number, key, column, ref_key, _, body = cell(shard, added_id)
        expected.add(number, key, column, ref_key, body)
    return expected.hexdigest()


def seen(folder: Path, kind: str) -> dict[int, str]:
    view = LakeView(place_of(folder, kind))
    return {shard: each.hexdigest() for shard, each in view.digests().items()}


def test_l1_a_look_shows_positions_source_and_rows_of_one_commit(kind: str, tmp_path: Path) -> None:
    table = make(tmp_path, kind)
    before = table.look()
    assert (dict(before.positions), before.files(), before.last_commit()) == ({}, [], None)
    first = addition(table, {0: 20, 3: 5})
    assert append(table, first) is Outcome.LANDED
    assert (dict(before.positions), before.files()) == ({}, []), "a look shows one state"
    now = table.look()
    assert now.positions == {0: Position(20, 20), 3: Position(5, 5)}
    assert sum(each.rows for each in now.files()) == 25
    last = now.last_commit()
    assert last is not None
    assert last.newest_us == first.newest_us
    assert last.at_us > first.newest_us
    assert seen(tmp_path, kind) == {0: digest(0, 20), 3: digest(3, 5)}


def test_l1_positions_of_other_shards_stay_and_offsets_may_be_ahead_of_ids(
    kind: str, tmp_path: Path
) -> None:
    table = make(tmp_path, kind)
    append(table, addition(table, {0: 2, 1: 3}, gap=4))
    append(table, addition(table, {1: 9}, {1: 3}, gap=4))
    assert table.look().positions == {0: Position(2, 6), 1: Position(9, 13)}


def test_l2_a_commit_on_a_state_that_has_passed_adds_nothing(kind: str, tmp_path: Path) -> None:
    table = make(tmp_path, kind)
    slow, slow_rows = table.look(), addition(table, {0: 20})
    assert append(table, addition(table, {0: 10})) is Outcome.LANDED
    with pytest.raises(NotCommitted):
        slow.add(slow_rows)
    assert append(table, slow_rows) is Outcome.OVERTAKEN
    assert seen(tmp_path, kind) == {0: digest(0, 10)}


def test_l2_two_loaders_of_different_shards_both_land(kind: str, tmp_path: Path) -> None:
    one, other = make(tmp_path, kind), make(tmp_path, kind)
    append(one, addition(one, {0: 10}))
    assert append(other, addition(other, {1: 7})) is Outcome.LANDED
    assert append(one, addition(one, {0: 12}, {0: 10})) is Outcome.LANDED
    assert seen(tmp_path, kind) == {0: digest(0, 12), 1: digest(1, 7)}


def test_l2_one_shard_that_others_moved_stops_the_whole_addition(kind: str, tmp_path: Path) -> None:
    table = make(tmp_path, kind)
    append(table, addition(table, {1: 7}))
    assert append(table, addition(table, {0: 4, 1: 9})) is Outcome.OVERTAKEN
    assert seen(tmp_path, kind) == {1: digest(1, 7)}


@pytest.mark.parametrize("point", ["before", "after"])
def test_l3_the_next_look_shows_whether_a_commit_of_a_dead_loader_happened(
    kind: str, point: str, tmp_path: Path
) -> None:
    table = make(tmp_path, kind)
    rows = addition(table, {0: 6})
    name = {"iceberg": "lake.iceberg.{}_catalog", "delta": "lake.delta.{}_log"}[kind]
    set_failpoint(name.format(point), "raise")
    try:
        with pytest.raises(FailpointReached):
            append(table, rows)
    finally:
        clear_failpoints()
    assert table.look().positions == ({} if point == "before" else {0: Position(6, 6)})
    assert append(table, rows) is (Outcome.LANDED if point == "before" else Outcome.OVERTAKEN)
    assert seen(tmp_path, kind) == {0: digest(0, 6)}


def test_l5_a_table_of_another_log_takes_no_rows(kind: str, tmp_path: Path) -> None:
    make(tmp_path, kind)
    other = make(tmp_path, kind, "cluster-b/trips/topic-1")
    with pytest.raises(ProtectData, match=r"cluster-a/trips/topic-1.*cluster-b/trips/topic-1"):
        append(other, addition(other, {0: 3}, source="cluster-b/trips/topic-1"))
    assert other.look().files() == []


def test_l5_without_a_log_no_table_is_made(kind: str, tmp_path: Path) -> None:
    assert find_lake_table(place_of(tmp_path, kind)) is None
    assert list(tmp_path.iterdir()) == []


def test_rows_are_in_files_of_their_day_in_order_of_row_keys(kind: str, tmp_path: Path) -> None:
    table = make(tmp_path, kind)
    append(table, addition(table, {0: 50}))
    append(table, addition(table, {0: 90}, {0: 50}, days=2))
    view = LakeView(place_of(tmp_path, kind))
    days = view.query("SELECT created_day, count(*) AS n FROM cells GROUP BY ALL ORDER BY ALL")
    assert [each["n"] for each in days] == [50, 40]
    one_day = f"SELECT * FROM cells WHERE created_day = '{days[1]['created_day']}'"
    with view.connect() as connection:
        plan = str(connection.execute(f"EXPLAIN ANALYZE {one_day}").fetchall())
    assert "Total Files Read: 1" in plan
    keys = view.query("SELECT row_key FROM cells WHERE created_day = ?", [days[0]["created_day"]])
    assert [each["row_key"] for each in keys] == sorted(each["row_key"] for each in keys)
