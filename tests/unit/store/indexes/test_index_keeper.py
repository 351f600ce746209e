"""The cells that a keeper reads again after a trim or an erasure, and its writes of a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import StoredCell, new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_fences import Fences
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.version import IndexVersion, RowView

DEFINITION = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields:"
    " [{field: driver, type: string}]}, {column_name: FARE, fields: [{field: cents, type: int}]}]}"
)
VERSION = IndexVersion(DEFINITION, 1, 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=1) as datastore:
        datastore.engine.indexes.create(VERSION.table)
        yield datastore


def put(store: Datastore, row: int, ref_key: int, driver: str) -> None:
    store.engine.put([new_cell(UUID(int=row), "BASE", ref_key, {"driver": driver})])


def keeper(store: Datastore, *, new: bool = False) -> IndexKeeper:
    return IndexKeeper(VERSION, store.engine.indexes, store.engine.row_cells, new=new)


def live(store: Datastore) -> list[tuple[object, int]]:
    return [
        (entry.values[0], UUID(bytes=entry.row_key).int)
        for entry in store.engine.indexes.walk(VERSION.table, 0, None, 100)
        if entry.live
    ]


def test_a_batch_is_read_again_whole_after_a_trim_or_an_erasure(store: Datastore) -> None:
    for row, driver in enumerate(["ann", "bob", "cid"], 1):
        put(store, row, 1, driver)
    at_work = keeper(store)
    cells = store.engine.scan(0, 0, 10)
    store.engine.indexes.raise_fences([0])
    at_work.apply(0, cells)
    assert live(store) == [(b"ann", 1), (b"bob", 2), (b"cid", 3)]
    at_work.apply_together({0: cells})  # under the number that it has read: nothing is refused


def test_no_entry_of_a_row_is_indexed_after_its_erasure(store: Datastore) -> None:
    put(store, 1, 1, "ann")
    put(store, 1, 2, "bob")
    put(store, 2, 1, "cid")
    cells = store.engine.scan(0, 0, 10)
    assert not store.engine.erase(UUID(int=1).bytes, 1).done, "a body is still there"
    keeper(store).apply(0, cells)
    assert [entry.row_key for entry in store.engine.indexes.walk(VERSION.table, 0, None, 9)] == [
        UUID(int=2).bytes
    ]


def test_marks_of_earlier_places_of_a_row_are_written_before_its_erasure(store: Datastore) -> None:
    """A mark has a value of the row."""
    put(store, 1, 1, "ann")
    at_work, indexes = keeper(store), store.engine.indexes
    at_work.apply(0, store.engine.scan(0, 0, 1))
    put(store, 1, 2, "bob")

    erased: list[bytes] = []

    def erase() -> None:
        unwatch_failpoint("index.before_tombstones")
        erased.append(UUID(int=1).bytes)
        assert store.engine.erase(UUID(int=1).bytes, 100).done
        fences = indexes.raise_fences([0])
        indexes.remove(VERSION.table, {0: indexes.walk(VERSION.table, 0, None, 9)}, fences)

    watch_failpoint("index.before_tombstones", erase)
    at_work.apply(0, store.engine.scan(0, 1, 1))
    assert erased == [UUID(int=1).bytes]
    assert indexes.walk(VERSION.table, 0, None, 9) == []


def test_the_writers_of_a_new_version_raise_the_numbers_of_all_shards(store: Datastore) -> None:
    before = store.engine.indexes.fences([0])
    keeper(store)
    assert store.engine.indexes.fences([0]) == before
    keeper(store, new=True)
    assert store.engine.indexes.fences([0])[0] > before[0]


def cell(ref_key: int, body: bytes, column: str = "BASE") -> StoredCell:
    return StoredCell(ref_key, b"k" * 16, column, ref_key, 0, body)


def bodies(store: Datastore, *drivers: str) -> list[StoredCell]:
    for ref_key, driver in enumerate(drivers, 1):
        put(store, 9, ref_key, driver)
    return store.engine.scan(0, 0, 10)


def test_a_row_leaves_a_mark_at_each_place_where_it_has_been(store: Datastore) -> None:
    view = VERSION.views(bodies(store, "ann", "bob", "cid", "ann"))[UUID(int=9).bytes]
    entry = VERSION.entry_of(view)
    assert entry is not None
    marks = VERSION.left_places(view, entry)
    assert {(mark.values[0], mark.refs[0], mark.live) for mark in marks} == {
        (b"bob", 4, False),
        (b"cid", 4, False),
    }


def test_of_a_second_column_the_cell_with_the_highest_ref_key_counts() -> None:
    later, earlier = cell(5, b"\x01{}", "FARE"), cell(2, b"\x01{}", "FARE")
    view = VERSION.views([later, earlier])[b"k" * 16]
    assert view.others == {1: later}


def test_a_cell_whose_body_was_erased_has_no_values() -> None:
    assert VERSION.values_of(0, cell(1, ERASED_BODY)) == [None]
    assert VERSION.entry_of(RowView([cell(1, ERASED_BODY)], {})) is None


class Storage:
    """The numbers of one storage."""

    def __init__(self, **numbers: int) -> None:
        self.numbers = {int(shard[1:]): number for shard, number in numbers.items()}

    def fence_numbers(self, shards: object) -> dict[int, int]:
        return dict(self.numbers)

    def set_fences(self, numbers: dict[int, int]) -> None:
        self.numbers |= numbers


def test_a_raise_goes_above_the_numbers_of_every_storage() -> None:
    one, two = Storage(s0=5), Storage(s0=1 << 40)
    [number] = Fences([one, two]).raise_([0]).values()  # type: ignore[list-item]
    assert number > 1 << 40
    assert one.numbers == two.numbers == {0: number}


def test_two_raises_at_once_take_different_numbers() -> None:
    raised = {Fences([Storage(s0=5)]).raise_([0])[0] for _ in range(8)}  # type: ignore[list-item]
    assert len(raised) > 1
