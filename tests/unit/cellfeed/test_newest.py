"""The newest cells of several logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import pytest

from cellfeed.status import newest_of_many
from cellfeed.status.newest import newest_cells
from cellfeed.status.newest_of_many import FEW_LOGS, NewestCells
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange


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


def test_few_of_many_logs_are_read_for_the_newest_cells(tmp_path: Path) -> None:
    random = Random(28)
    with Datastore.open_embedded(tmp_path, shards=FEW_LOGS * 4) as store:
        newest = NewestCells(store)
        assert newest.read(store.heads(), 10, None) == []
        number = 0
        for _ in range(4):
            # Some logs get many cells of one moment after each other, most get one or none.
            favourite = UUID(int=random.getrandbits(128), version=4)
            keys = [UUID(int=random.getrandbits(128), version=4) for _ in range(400)]
            for ref, key in enumerate([*keys, *[favourite] * 30], 1):
                store.put_cell(key, "RARE" if number % 9 == 0 else "BASE", ref, {"n": number})
                number += 1
            heads = store.heads()
            for last, column in ((1, None), (10, None), (50, None), (20, "RARE"), (5, "NEVER")):
                everything = newest_cells(store, heads, 10_000, column)
                assert newest.read(heads, last, column) == everything[-last:]


def test_the_ends_of_many_logs_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Datastore.open_embedded(tmp_path, shards=FEW_LOGS * 2) as store:
        put(store, range(300))
        newest = NewestCells(store)
        before = newest.read(store.heads(), 10, None)
        asked: list[LogRange] = []
        scan_many = store.engine.scan_many

        def counted(ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
            asked.extend(ranges)
            return scan_many(ranges)

        monkeypatch.setattr(store.engine, "scan_many", counted)
        assert newest.read(store.heads(), 10, None) == before
        assert asked == []
        put(store, range(300, 301))
        assert newest.read(store.heads(), 10, None)[-1].body == {"n": 300}
        assert len(asked) == 1


def test_a_look_for_a_column_that_is_not_there_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_of_many, "LOOKED_THROUGH_MAX", 100)
    with Datastore.open_embedded(tmp_path, shards=FEW_LOGS * 2) as store:
        put(store, range(1_000))
        looked: list[int] = []
        get = store.get_cells_for_shards

        def counted(locations: dict[int, int], limit: int) -> object:
            found = get(locations, limit)
            looked.extend(len(piece.cells) for piece in found.values())
            return found

        monkeypatch.setattr(store, "get_cells_for_shards", counted)
        assert NewestCells(store).read(store.heads(), 5, "NEVER") == []
        assert 100 <= sum(looked) <= 100 + 50 * 8
