"""A check of an index beside writes, trims and erasures: it reports no row that a later cell has
moved on, and a repair writes nothing from before an erasure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import Entry
from cellfeed.store.indexes import check as check_module
from cellfeed.store.indexes.check import IndexCheck
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.difference import Difference
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.repair import IndexRepair
from cellfeed.store.indexes.version import IndexVersion

DEFINITION = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields:"
    " [{field: driver, type: string}, {field: fare, type: int}]}]}"
)
ROW = UUID(int=1)


class Index:
    """An index on one shard, which nobody keeps but the test. ``on_wait`` is done whenever a check
    waits for the index."""

    def __init__(self, datastore: Datastore) -> None:
        self.datastore, self.engine = datastore, datastore.engine
        self.version: IndexVersion = datastore.indexes.version(
            datastore.indexes.catalog.create(DEFINITION)
        )
        self.engine.indexes.create(self.version.table)
        self.on_wait: Callable[[], object] = lambda: None
        self.check = IndexCheck(self.engine, self.version, self._positions)
        self.repair = IndexRepair(self.engine, self.version, self.check.report)

    def _positions(self, group: str) -> dict[int, int]:
        self.on_wait()
        return {0: 1 << 40}

    def put(self, ref_key: int, driver: str, fare: int = 1, row: UUID = ROW) -> None:
        [result] = self.engine.put(
            [new_cell(row, "BASE", ref_key, {"driver": driver, "fare": fare})]
        )
        assert result.outcome is Outcome.STORED

    def keep(self) -> None:
        """Brings the entries up to the log's end."""
        keeper = IndexKeeper(self.version, self.engine.indexes, self.engine.row_cells)
        keeper.apply(0, self.engine.scan(0, 0, 1_000))

    def plant(self, driver: str, ref_key: int, fare: int = 1) -> Entry:
        entry = Entry(ROW.bytes, True, (ref_key,), (driver.encode(), fare))
        self.engine.indexes.apply(self.version.table, {0: [entry]})
        return entry

    def entries(self) -> list[tuple[bool, object, int | None]]:
        return [
            (entry.live, entry.values[0], entry.refs[0])
            for entry in self.engine.indexes.walk(self.version.table, 0, None, 100)
        ]

    def differences(self) -> list[Difference]:
        return list(self.check.run())


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Datastore.open_embedded(tmp_path / "store", shards=1) as datastore:
        yield Index(datastore)


def test_a_row_that_gets_a_cell_while_it_is_looked_at_is_looked_at_again(index: Index) -> None:
    index.put(1, "ann")  # not in the index yet

    def catch_up() -> None:
        index.on_wait = lambda: None
        index.put(2, "bob")
        index.keep()

    index.on_wait = catch_up
    assert index.differences() == []
    assert index.check.report.unsettled == 0


def test_a_row_that_gets_a_cell_at_every_look_is_reported_as_not_settled(index: Index) -> None:
    index.put(1, "ann")
    numbers = iter(range(2, 1_000))
    index.on_wait = lambda: index.put(next(numbers), "ann")
    assert index.differences() == []
    assert (index.check.report.unsettled, index.check.report.differences) == (1, 0)


def test_no_entry_is_mended_after_an_erasure_or_a_trim_since_the_look(
    index: Index,
) -> None:
    index.put(1, "ann")
    [missing] = index.differences()
    index.engine.indexes.raise_fences([0])
    index.repair.repair(missing)
    assert index.entries() == []
    assert index.check.report.unsettled == 1


def test_a_repair_leaves_no_mark_of_a_row_that_is_being_erased(index: Index) -> None:
    index.put(1, "ann")
    index.put(2, "bob")
    index.put(3, "cid")
    assert not index.engine.erase(ROW.bytes, 1).done, "bodies are still there"
    index.plant("ann", 1)
    index.plant("bob", 2)
    for difference in index.differences():
        index.repair.repair(difference)
    assert index.entries() == []


def test_a_wrong_field_of_an_entry_is_mended_in_place(index: Index) -> None:
    index.put(1, "ann", 5)
    index.plant("ann", 1, fare=6)
    [stale] = index.differences()
    assert stale.kind == "stale"
    index.repair.repair(stale)
    assert index.entries() == [(True, b"ann", 1)]
    assert index.differences() == []


def test_a_row_that_returned_since_the_look_is_found_in_its_place(index: Index) -> None:
    index.put(1, "ann")
    index.put(2, "bob")
    index.keep()
    index.plant("ann", 3)  # as a defect leaves it: the mark of its leaving is gone
    [stale] = index.differences()
    assert (stale.kind, stale.found and stale.found.values[0]) == ("stale", b"ann")
    index.put(4, "ann")  # the index has not got it yet
    index.repair.repair(stale)
    index.keep()
    assert (True, b"ann", 4) in index.entries()
    assert index.differences() == []


def test_a_later_cell_at_the_same_place_is_in_the_index_after_a_repair(index: Index) -> None:
    index.put(1, "ann", 5)
    index.plant("ann", 1, fare=6)
    [stale] = index.differences()
    index.put(2, "ann", 7)
    index.repair.repair(stale)
    index.keep()
    assert index.entries() == [(True, b"ann", 2)]
    assert index.differences() == []


def test_a_check_continues_at_the_logs_start_after_a_trim(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "_CELLS", 2)
    for number in range(8):
        index.put(1, "ann", row=UUID(int=number + 1))
    trims = iter([4])

    def trim(cells: int) -> None:
        for below in trims:
            assert index.engine.trim(0, below) == below

    found = list(index.check.run(trim))
    assert {UUID(bytes=each.row_key).int for each in found} >= {5, 6, 7, 8}
