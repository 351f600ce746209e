"""Workers of an index write no entry of a cell that was trimmed or erased meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cellfeed.store.cells.cell import StoredCell, new_cell
from cellfeed.store.engines.contract.index_values import RowsBelow
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.version import IndexVersion
from tests.support.fenced_index import CHANGED, OTHER, ROW, Held, Index, base
from tests.support.index_store_proxy import IndexStoreProxy


def test_a_worker_that_was_overtaken_does_not_write_cells_trimmed_since(index: Index) -> None:
    cells = index.put(base(ROW, 1, "ann"))

    def overtake_and_trim() -> None:
        index.keeper.apply(0, cells)
        index.trim(1)
        assert index.entries() == []

    late = Held(index.store, overtake_and_trim)
    index.keeper_of(late).apply(0, cells)
    assert (late.held, late.refused) == (True, 1)
    assert index.entries() == []


def test_the_remaining_cells_of_a_batch_are_written_when_the_others_were_trimmed(
    index: Index,
) -> None:
    cells = index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"))

    def overtake_and_trim() -> None:
        index.keeper.apply(0, cells[:1])
        index.trim(1)

    late = Held(index.store, overtake_and_trim)
    keeper = index.keeper_of(late)
    keeper.apply(0, cells)
    assert index.entries() == [("bob", 2, True)]
    keeper.apply(0, index.put(base(ROW, 1, "ann")))
    assert index.entries() == [("ann", 1, True), ("bob", 2, True)], "put again, it is there again"
    assert late.refused == 1, "the fence is known once it has been read again"


def test_the_owner_of_a_shard_does_not_write_of_an_older_cell_that_is_being_trimmed(
    index: Index,
) -> None:
    """The cell with the driver lies before its batch: the worker read it from the log before."""
    index.keeper.apply(0, index.put(base(ROW, 1, "ann")))
    batch = index.put(new_cell(ROW, "STATUS", 1, {"state": "done"}))
    late = Held(index.store, lambda: index.trim(1))
    index.keeper_of(late).apply(0, batch)
    assert late.refused == 1
    assert index.entries() == []


def test_a_worker_that_was_overtaken_does_not_write_cells_erased_since(index: Index) -> None:
    cells = index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"))

    def overtake_and_erase() -> None:
        index.keeper.apply(0, cells)
        index.datastore.erase_row(ROW)
        index.keeper.apply(0, index.log(2))
        assert index.entries() == [("bob", 2, True)]

    late = Held(index.store, overtake_and_erase)
    index.keeper_of(late).apply(0, cells)
    assert late.refused == 1
    assert index.entries() == [("bob", 2, True)]


def test_a_row_whose_bodies_are_still_being_erased_makes_no_entry(index: Index) -> None:
    """The log reports the erasure, and the index came to that; a step took one body. A batch from
    before runs again."""
    cells = index.put(
        base(ROW, 1, "ann"), base(ROW, 2, "bob"), new_cell(ROW, "STATUS", 1, {"state": "done"})
    )
    index.keeper.apply(0, cells)
    assert not index.engine.erase(ROW.bytes, 0).done
    keeper = index.keeper_of(index.store)
    keeper.apply(0, index.log(3))
    assert index.entries() == []
    step = index.engine.erase(ROW.bytes, 1)
    assert (step.cells, step.done) == (1, False)
    keeper.apply(0, cells[1:])
    index.keeper_of(index.store).apply(0, cells[1:])
    assert index.entries() == []


def test_the_index_takes_the_entries_out_where_the_program_died_that_erased(index: Index) -> None:
    index.keeper.apply(
        0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"), base(ROW, 2, "eve"))
    )
    set_failpoint("datastore.erase.after_poke", "raise")
    with pytest.raises(FailpointReached):
        index.datastore.erase_row(ROW)
    clear_failpoints()
    assert index.entries() == [("ann", 1, False), ("bob", 2, True), ("eve", 1, True)]
    index.keeper.apply(0, index.log(3))
    assert index.entries() == [("bob", 2, True)]
    assert index.datastore.erase_row(ROW).cells == 2


@pytest.mark.parametrize(
    "place",
    [
        "engine.erase.before_commit",
        "datastore.erase.after_poke",
        "index.erase.removed",
        "datastore.erase.taken_out",
    ],
)
def test_a_version_that_is_made_and_built_in_the_middle_of_an_erasure_has_nothing_of_the_row(
    index: Index, place: str
) -> None:
    """Just before the log reports it; after that; when the first version was looked at; when all
    were."""
    index.keeper.apply(
        0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"), base(ROW, 2, "eve"))
    )
    place = place.replace(
        "engine.", "sqlite." if isinstance(index.engine, SqliteEngine) else "mysql."
    )
    made: list[IndexVersion] = []

    def make() -> None:
        made.append(
            index.datastore.indexes.version(index.datastore.indexes.catalog.create(CHANGED))
        )
        index.store.create(made[0].table)

    if place == "mysql.erase.before_commit":
        # the tables: on a server they are made under the shard's counter, which is locked there
        make()

    def make_another() -> None:
        unwatch_failpoint(place)
        if not made:
            make()
        IndexKeeper(made[0], index.store, index.engine.row_cells, new=True).apply(0, index.log())

    watch_failpoint(place, make_another)
    try:
        assert index.datastore.erase_row(ROW).cells == 2
    finally:
        clear_failpoints()
    for version in (index.version, made[0]):
        assert [entry.row_key for entry in index.store.walk(version.table, 0, None, 100)] == [
            OTHER.bytes
        ]


def test_a_keeper_of_a_new_version_reads_only_nodes_with_all_earlier_cells(
    index: Index,
) -> None:
    asked: list[int] = []

    class Seen(IndexStoreProxy):
        def latest_before(
            self, rows: Sequence[RowsBelow], columns: Sequence[str]
        ) -> list[StoredCell]:
            asked.extend(each.fence for each in rows)
            return self.store.latest_before(rows, columns)

    cells = index.put(base(ROW, 1, "ann"))
    before = index.store.fences([0])[0]
    for new in (False, True, False):
        IndexKeeper(index.version, Seen(index.store), index.engine.row_cells, new=new).apply(
            0, cells
        )
    assert asked[0] == before < asked[1] == asked[2]
