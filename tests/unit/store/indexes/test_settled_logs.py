"""Fresh queries that do not look at the cells of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.trimmed import IndexedTrim
from tests.support.index_with_ends import EndsBesideEntries
from tests.support.waiting import wait_until

DEFINITION = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
    " driver, type: string}, {field: n, type: int}]}]}"
)
ROW = UUID(int=7)


class Place:
    """A datastore with an index of one row that the test keeps. ``handled``: how far the index has
    come, as the coordination says."""

    def __init__(self, directory: Path) -> None:
        self.inner = Datastore.open_embedded(directory, shards=1)
        self.engine = EndsBesideEntries(self.inner.engine)
        self.store = Datastore(self.engine)
        catalog = self.store.indexes.catalog
        self.version = self.store.indexes.version(catalog.create(DEFINITION))
        self.engine.indexes.create(self.version.table)
        catalog.switch("by_driver", self.version.number)
        self.keeper = IndexKeeper(self.version, self.engine.indexes, self.engine.row_cells)
        self.settled = self.store.indexes.settled
        self.settled.handled_to = lambda _: self.handled
        self.handled: Mapping[int, int] = {}

    def put(self, number: int) -> None:
        self.store.put_cells([(ROW, "BASE", number, {"driver": "ann", "n": number})])

    def keep(self) -> None:
        self.keeper.apply(0, self.engine.scan(0, 0, 100))
        self.handled = {0: self.engine.heads()[0].next_added_id}

    def shown(self) -> list[object]:
        page = self.store.query_index("by_driver", "ann")
        assert not page.stale
        return [row.fields["n"] for row in page.rows]

    def looks(self) -> bool:
        """Whether a query looks at the row's cells."""
        before = self.engine.looked_at
        self.shown()
        return self.engine.looked_at > before


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with made.inner, made.store:
        made.put(1)
        made.keep()
        yield made


@pytest.mark.parametrize("together", [True, False])
def test_a_row_of_a_log_that_the_index_has_passed_is_not_looked_at(
    place: Place, together: bool
) -> None:
    place.engine.together = together
    assert place.looks()
    place.settled.read(place.version.group)
    assert not place.looks()
    place.put(2)
    assert place.looks()
    assert place.shown() == [2]
    place.keep()
    assert place.looks()
    place.settled.read(place.version.group)
    assert not place.looks()
    assert place.shown() == [2]


def test_offsets_that_are_read_while_a_query_runs_do_not_count_for_it(place: Place) -> None:
    """Its entries may be from before them."""
    place.settled.read(place.version.group)

    def keep_another() -> None:
        place.engine.between = bool
        place.put(2)
        place.keep()
        place.settled.read(place.version.group)

    place.engine.between = keep_another
    assert place.shown() == [2]


def test_offsets_of_another_history_settle_nothing(place: Place) -> None:
    place.handled = {0: 9}
    place.settled.read(place.version.group)
    for number in range(2, 10):
        place.put(number)
    assert place.shown() == [9]


def test_rows_of_trimmed_cells_are_left_out_while_their_entries_are_there(place: Place) -> None:
    place.settled.read(place.version.group)
    set_failpoint("index.trim.trimmed", "raise")
    with suppress(FailpointReached):
        IndexedTrim(place.engine, place.store.indexes, place.store.trim).step(0, 0, 1)
    clear_failpoints()
    assert place.engine.heads()[0].log_start == 1
    [entry] = place.engine.indexes.walk(place.version.table, 0, None, 9)
    assert entry.live
    assert place.shown() == []  # known from before the trim
    place.settled.read(place.version.group)
    assert place.shown() == []  # known since the trim


def test_a_query_that_looks_at_rows_has_the_offsets_read_soon(place: Place) -> None:
    wait_until(lambda: not place.looks(), "the offsets are known")


def test_a_query_is_answered_while_nobody_can_say_how_far_the_index_is(place: Place) -> None:
    asked = []

    def cut_off(group: str) -> Mapping[int, int]:
        asked.append(group)
        raise StorageUnavailable("a test")

    place.settled.handled_to = cut_off
    wait_until(lambda: place.shown() == [1] and len(asked) > 1, "it is asked again")
    assert place.looks()


def test_an_engine_whose_looks_are_cheap_has_no_offsets_read(tmp_path: Path) -> None:
    with Datastore.open_embedded(tmp_path, shards=1) as store:
        assert store.engine.indexes.beside_ends is None
        store.indexes.settled.handled_to = lambda _: pytest.fail("nobody uses them")
        store.indexes.settled.read_soon("index.by_driver.v1")
        assert store.indexes.settled.known("index.by_driver.v1") is None
