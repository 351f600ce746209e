"""The newest cells of several logs."""

from __future__ import annotations

from uuid import uuid4

from cellfeed.status.newest import newest_cells
from cellfeed.store.datastore import Datastore


def put(store: Datastore, numbers: range, column: str = "BASE") -> None:
    for number in numbers:
        store.put_cell(uuid4(), column, 1, {"n": number})


def shown(store: Datastore, last: int, column: str | None = None) -> list[int]:
    return [cell.body["n"] for cell in newest_cells(store, store.heads(), last, column)]


def test_the_newest_cells_of_all_shards_are_in_order(datastore: Datastore) -> None:
    put(datastore, range(60))
    assert shown(datastore, 10) == list(range(50, 60))
    assert shown(datastore, 0) == []
    assert shown(datastore, 1_000) == list(range(60))


def test_the_newest_cell_of_a_column_is_found_behind_cells_of_others(datastore: Datastore) -> None:
    put(datastore, range(5), "RARE")
    put(datastore, range(5, 100))
    assert shown(datastore, 3, "RARE") == [2, 3, 4]
    assert shown(datastore, 30, "RARE") == [0, 1, 2, 3, 4]
    assert shown(datastore, 3, "NEVER") == []


def test_cells_behind_the_heads_are_left_to_the_follower(datastore: Datastore) -> None:
    put(datastore, range(20))
    heads = datastore.heads()
    put(datastore, range(20, 40))
    found = [cell.body["n"] for cell in newest_cells(datastore, heads, 5, None)]
    assert found == [15, 16, 17, 18, 19]


def test_an_empty_store_has_no_newest_cell(datastore: Datastore) -> None:
    assert shown(datastore, 10) == []
