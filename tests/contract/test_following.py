"""Following the logs of a datastore: one suite, in process and over HTTP, over both engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.token import Places, Token
from cellfeed.store.errors import (
    InvalidColumn,
    InvalidRequest,
    OtherHistory,
    Trimmed,
    UnknownShard,
)
from cellfeed.store.followed import FollowedCell, Follower

if TYPE_CHECKING:
    from cellfeed.store.datastore import Datastore


@contextmanager
def following(store: CellStore, **options: Any) -> Iterator[Follower]:
    with store.follow(**options) as follower:
        yield follower


def taken(follower: Follower, count: int) -> list[FollowedCell]:
    return list(islice(follower, count))


def names(cells: list[FollowedCell]) -> list[tuple[UUID, str, int]]:
    return [(each.row_key, each.column_name, each.ref_key) for each in cells]


def test_a_follower_from_the_latest_cell_gives_only_later_puts(store: CellStore) -> None:
    row = uuid4()
    store.put_cell(row, "BASE", 1, {"before": True})
    with following(store) as follower:
        for ref_key in range(2, 8):
            store.put_cell(row, "BASE", ref_key, {"n": ref_key})
        cells = taken(follower, 6)
    assert names(cells) == [(row, "BASE", ref_key) for ref_key in range(2, 8)]
    assert [each.body for each in cells] == [{"n": ref_key} for ref_key in range(2, 8)]
    found = store.get_cell(row, "BASE", 2)
    assert found is not None
    assert (cells[0].shard, cells[0].added_id, cells[0].created_at) == (
        found.shard,
        found.added_id,
        found.created_at,
    )


def test_each_token_resumes_behind_its_cell(store: CellStore) -> None:
    rows = [uuid4() for _ in range(40)]
    with following(store) as follower:
        store.put_cells([(row, "BASE", 1, {}) for row in rows])
        cells = taken(follower, 40)
    assert {each.row_key for each in cells} == set(rows)
    for passed in (0, 7, 38):
        with following(store, start=cells[passed].token) as resumed:
            rest = taken(resumed, 39 - passed)
        assert sorted(names(rest)) == sorted(names(cells[passed + 1 :]))


def test_tokens_of_followers_of_some_shards_merge(store: CellStore) -> None:
    low, high = range(8), range(8, 16)
    with following(store, shards=low) as first, following(store, shards=high) as second:
        put = store.put_cells([(uuid4(), "BASE", 1, {}) for _ in range(60)])
        counts = [sum(each.shard in some for each in put) for some in (low, high)]
        cells = taken(first, counts[0]), taken(second, counts[1])
        assert {each.shard for each in cells[0]} <= set(low)
        token = Token.of([first.token, second.token])
    with following(store, start=token) as resumed:
        behind = store.put_cell(uuid4(), "BASE", 1, {})
        [cell] = taken(resumed, 1)
    assert (cell.shard, cell.added_id) == (behind.shard, behind.added_id)


def test_columns_choose_the_cells_and_the_token_passes_the_others(store: CellStore) -> None:
    row = uuid4()
    with following(store, column="WANTED") as one, following(store, column=["A", "B"]) as two:
        for ref_key, column in enumerate(["A", "WANTED", "C", "B", "WANTED", "C"]):
            store.put_cell(row, column, ref_key, {})
        wanted = taken(one, 2)
        assert names(wanted) == [(row, "WANTED", 1), (row, "WANTED", 4)]
        assert names(taken(two, 2)) == [(row, "A", 0), (row, "B", 3)]
        [places] = [
            each
            for each in Token.parse(wanted[1].token).places
            if each.shard == store.shard_of(row)
        ]
        assert places.last == wanted[1].added_id


def test_a_bookmark_covers_cells_that_nobody_asked_for(
    store: CellStore, datastore: Datastore
) -> None:
    others: list[PutResult] = []

    def put_once_passed(token: str) -> None:
        passed = {each.shard: each.last for each in Token.parse(token).places}
        if others and passed.get(others[0].shard or 0, -1) >= (others[0].added_id or 0):
            datastore.put_cell(uuid4(), "WANTED", 1, {})

    with following(store, column="WANTED", on_bookmark=put_once_passed) as follower:
        others.append(datastore.put_cell(uuid4(), "OTHER", 1, {}))
        assert taken(follower, 1)[0].column_name == "WANTED"


def test_the_earliest_cell_is_the_first_of_each_log(store: CellStore) -> None:
    store.put_cell(uuid4(), "BASE", 1, {})
    heads = store.heads()
    count = sum(head.watermark - head.log_start for head in heads.values())
    with following(store, start="earliest") as follower:
        cells = taken(follower, count)
    for shard, head in heads.items():
        ids = [each.added_id for each in cells if each.shard == shard]
        assert ids == list(range(head.log_start, head.watermark))


def test_a_moment_is_a_start(store: CellStore) -> None:
    moment = datetime.now(UTC)
    row = uuid4()
    store.put_cell(row, "BASE", 1, {})
    with following(store, start=moment) as follower:
        assert names(taken(follower, 1)) == [(row, "BASE", 1)]


def test_a_put_is_a_start(store: CellStore) -> None:
    row = uuid4()
    first = store.put_cell(row, "BASE", 1, {})
    store.put_cell(row, "BASE", 2, {})
    with following(store, start=first, shards=[store.shard_of(row)]) as follower:
        assert names(taken(follower, 1)) == [(row, "BASE", 2)]


def test_a_long_log_comes_whole_and_in_order(store: CellStore) -> None:
    row = uuid4()
    shard = store.shard_of(row)
    with following(store, shards=[shard]) as follower:
        for first in range(0, 3_000, 1_000):
            store.put_cells(
                [(row, "LONG", first + each, {"text": "x" * 2_000}) for each in range(1_000)]
            )
        cells = taken(follower, 3_000)
    assert [each.ref_key for each in cells] == list(range(3_000))
    assert [each.added_id - cells[0].added_id for each in cells] == list(range(3_000))


def test_large_bodies_are_followed_whole(store: CellStore) -> None:
    row = uuid4()
    with following(store, shards=[store.shard_of(row)]) as follower:
        for ref_key in range(12):
            store.put_cell(row, "LARGE", ref_key, {"text": str(ref_key % 10) * 900_000})
        cells = taken(follower, 12)
    assert [each.body["text"][:1] for each in cells] == [str(each % 10) for each in range(12)]


def test_an_erased_row_shows_where_it_was(store: CellStore) -> None:
    row = uuid4()
    with following(store) as follower:
        before = follower.token
        store.put_cell(row, "BASE", 1, {"name": "somebody"})
        assert taken(follower, 1)[0].body == {"name": "somebody"}
        store.erase_row(row)
        [mark] = taken(follower, 1)
        assert (mark.row_key, mark.column_name, mark.erased) == (row, ERASED_COLUMN, True)
    with following(store, start=before) as again:
        cells = taken(again, 2)
    assert [(each.column_name, each.erased) for each in cells] == [
        ("BASE", True),
        (ERASED_COLUMN, True),
    ]


def test_a_start_below_the_trimmed_head_is_refused_with_the_head(
    store: CellStore, datastore: Datastore
) -> None:
    row = uuid4()
    shard = store.shard_of(row)
    with following(store, shards=[shard]) as follower:
        before = follower.token
        for ref_key in range(3):
            store.put_cell(row, "BASE", ref_key, {})
        third = taken(follower, 3)[2]
    while datastore.trim(shard, third.added_id) < third.added_id:
        pass  # another test has filled this shard: a step takes a part of it
    with (
        pytest.raises(Trimmed, match=f"shard {shard} .*begins at {third.added_id}"),
        following(store, start=before, shards=[shard]) as late,
    ):
        next(late)
    with following(store, start="earliest", shards=[shard]) as follower:
        assert names(taken(follower, 1)) == [(row, "BASE", 2)]


def test_a_token_of_another_history_is_refused_with_both_ids(
    store: CellStore, datastore: Datastore
) -> None:
    other = Token("another-history", (Places(0, 0, 0),))
    with (
        pytest.raises(OtherHistory, match=f"another-history.*{datastore.history_id}"),
        following(store, start=other),
    ):
        pass


def test_a_token_that_is_ahead_of_the_log_is_refused(
    store: CellStore, datastore: Datastore
) -> None:
    ahead = Token(datastore.history_id, (Places(3, 0, 1 << 40),))
    with (
        pytest.raises(InvalidRequest, match="no token of this log"),
        following(store, start=ahead, shards=[3]),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"column": ""}, InvalidColumn),
        ({"column": 3}, InvalidRequest),
        ({"column": []}, InvalidRequest),
        ({"shards": []}, InvalidRequest),
        ({"shards": [True]}, InvalidRequest),
        ({"shards": [16]}, UnknownShard),
        ({"start": "yesterday"}, InvalidRequest),
        ({"start": "a:b:c"}, InvalidRequest),
        ({"start": 7}, InvalidRequest),
        ({"start": datetime(2020, 1, 1)}, InvalidRequest),  # noqa: DTZ001
    ],
)
def test_wrong_arguments_are_refused(
    store: CellStore, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error), following(store, **options):
        pass


def test_a_closed_follower_has_ended(store: CellStore) -> None:
    follower = store.follow()
    follower.close()
    assert list(follower) == []
