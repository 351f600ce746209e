"""A state machine over the entries of an index against the cells, over every engine: cells in any
order of ref keys; a keeper that crashes at each failpoint and runs batches again; another one that
was paused with an old batch and writes it late. When the index is at the end of every log, it
equals the cells (I18)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell, StoredCell, new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import UNFENCED, Entry, IndexTable
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import StaleView
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, clear_failpoints, set_failpoint
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.trimmed import IndexedTrim
from cellfeed.store.indexes.version import IndexVersion, RowView
from tests.support import local_mariadb
from tests.support.index_store_proxy import IndexStoreProxy
from tests.support.local_mariadb import MariaDB

SHARDS = 3
SEEDS_THAT_FAILED = [2, 13]
"""Reported as failed once; that failure was not repeated here, and the examples of a seed change
with the model."""

DEFINITION = parse_definition(
    """
table: by_driver
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: driver, type: string}, {field: n, type: int}]
  - column_name: STATUS
    fields: [{field: state.name, type: string}]
"""
)
BODIES = st.one_of(
    st.builds(
        lambda driver, n: {"driver": driver, "n": n},
        st.sampled_from(["ann", "bob", "eve"]),
        st.sampled_from([1, 2, "unfit", None]),
    ),
    st.just({"n": 3}),
    st.just({"driver": 5}),
)
CELLS = st.one_of(
    st.builds(
        lambda row, ref, body: new_cell(UUID(int=row), "BASE", ref, body),
        st.integers(0, 2),
        st.integers(-4, 4),
        BODIES,
    ),
    st.builds(
        lambda row, ref, name: new_cell(UUID(int=row), "STATUS", ref, {"state": {"name": name}}),
        st.integers(0, 2),
        st.integers(0, 4),
        st.sampled_from("xyz"),
    ),
    st.builds(
        lambda row, ref: new_cell(UUID(int=row), "OTHER", ref, {}),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
)
PLACES = sorted(
    name
    for name in FAILPOINTS
    if name.startswith(("index.", "sqlite.index.", "mysql.index."))
    and ".trim." not in name
    and ".drop." not in name
)
ERASE_PLACES = sorted(
    {
        name.removeprefix("sqlite.")
        for name in FAILPOINTS
        if name.startswith(("datastore.erase.", "sqlite.erase.", "index.erase."))
    }
)
TRIM_PLACES = sorted(
    name
    for name in FAILPOINTS
    if name.startswith("index.trim.") or ".trim." in name or name.endswith(".index.before_commit")
)


class IndexMachine(RuleBasedStateMachine):
    kind: str
    server: MariaDB | None = None

    @initialize()
    def open(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cellfeed-index-"))
        self.engine: Engine = (
            SqliteEngine(self.directory / "trips", "trips", SHARDS)
            if self.server is None
            else MySqlEngine(MySqlServer(self.server.address), "trips", SHARDS, create=True)
        )
        self.version = IndexVersion(DEFINITION, 1, SHARDS)
        self.engine.indexes.create(self.version.table)
        self.keeper = IndexKeeper(self.version, self.engine.indexes, self.engine.row_cells)
        self.saved = [0] * SHARDS
        self.paused: list[_Late] = []

    def teardown(self) -> None:
        clear_failpoints()
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.directory)
            if self.server is not None:
                local_mariadb.drop_all_databases(self.server)

    @rule(cells=st.lists(CELLS, min_size=1, max_size=5))
    def put(self, cells: list[NewCell]) -> None:
        self.engine.put(cells)

    def batch(self, shard: int, count: int) -> list[StoredCell]:
        return self.followed(self.engine.scan(shard, self.saved[shard], count))

    @staticmethod
    def followed(cells: list[StoredCell]) -> list[StoredCell]:
        return [
            cell
            for cell in cells
            if cell.column_name == ERASED_COLUMN
            or (cell.column_name in DEFINITION.columns and not is_erased(cell.body))
        ]

    @rule(shard=st.integers(0, SHARDS - 1), count=st.integers(1, 6), save=st.booleans())
    def keep(self, shard: int, count: int, save: bool) -> None:
        scanned = self.engine.scan(shard, self.saved[shard], count)
        if cells := self.batch(shard, count):
            self.keeper.apply(shard, cells)
        if save and scanned:
            self.saved[shard] = scanned[-1].added_id + 1

    @rule(count=st.integers(1, 6), save=st.booleans())
    def keep_together(self, count: int, save: bool) -> None:
        """As a sweep does: the rest is done shard by shard."""
        scanned = {
            shard: cells
            for shard in range(SHARDS)
            if (cells := self.engine.scan(shard, self.saved[shard], count))
        }
        followed = {
            shard: wanted for shard, cells in scanned.items() if (wanted := self.followed(cells))
        }
        try:
            if followed:
                self.keeper.apply_together(followed)
        except StaleView:
            for shard, cells in followed.items():
                self.keeper.apply(shard, cells)
        for shard, cells in scanned.items():
            if save:
                self.saved[shard] = cells[-1].added_id + 1

    @rule(
        shard=st.integers(0, SHARDS - 1),
        count=st.integers(1, 6),
        place=st.sampled_from(PLACES),
        at_pass=st.integers(1, 2),
    )
    def keep_and_crash(self, shard: int, count: int, place: str, at_pass: int) -> None:
        cells = self.batch(shard, count)
        if not cells:
            return
        set_failpoint(place, "raise", at_pass)
        with suppress(FailpointReached):
            self.keeper.apply(shard, cells)
        clear_failpoints()

    @rule(shard=st.integers(0, SHARDS - 1), count=st.integers(1, 6), part=st.booleans())
    def pause(self, shard: int, count: int, part: bool) -> None:
        """Another keeper has come to the same place, has read all that it needs, and is paused
        before its writes."""
        cells = [cell for cell in self.batch(shard, count) if cell.column_name != ERASED_COLUMN]
        if not cells:
            return
        late = _Recorder(self.engine.indexes)
        IndexKeeper(self.version, late, self.engine.row_cells).apply(shard, cells)
        self.paused += late.writes[: 1 if part else None]

    @rule(data=st.data())
    def wake_up(self, data: st.DataObject) -> None:
        if self.paused:
            late = self.paused.pop(data.draw(st.integers(0, len(self.paused) - 1)))
            with suppress(StaleView):
                self.engine.indexes.apply(self.version.table, *late)

    @invariant()
    def the_index_is_what_the_cells_say_once_it_has_come_to_the_end(self) -> None:
        heads = self.engine.heads()
        if any(self.saved[shard] < heads[shard].watermark for shard in range(SHARDS)):
            return
        assert self.found() == self.expected()

    @rule()
    def catch_up(self) -> None:
        for shard in range(SHARDS):
            while cells := self.engine.scan(shard, self.saved[shard], 100):
                if wanted := self.followed(cells):
                    self.keeper.apply(shard, wanted)
                self.saved[shard] = cells[-1].added_id + 1

    def found(self) -> dict[bytes, Entry]:
        live = [
            (shard, entry)
            for shard in range(SHARDS)
            for entry in self.engine.indexes.walk(self.version.table, shard, None, 1000)
            if entry.live
        ]
        assert all(self.version.shard_of_value(entry.place[0]) == shard for shard, entry in live)
        assert len({entry.row_key for _, entry in live}) == len(live)
        return {entry.row_key: entry for _, entry in live}

    def expected(self) -> dict[bytes, Entry]:
        rows: dict[bytes, Entry] = {}
        for row in range(3):
            cells = [each.cell for each in self.engine.row([UUID(int=row).bytes])[0]]
            if any(cell.column_name == ERASED_COLUMN for cell in cells):
                continue
            view = self.version.views(cells).get(UUID(int=row).bytes, RowView([], {}))
            if (entry := self.version.entry_of(view)) is not None:
                rows[entry.row_key] = entry
        return rows


class TrimmedMachine(IndexMachine):
    """The same with trims below the keeper's saved place, which crash at each of their failpoints,
    and rows that are put again after. A keeper that was paused with a batch from before a trim is
    woken up after it."""

    @initialize()
    def open(self) -> None:
        super().open()
        self.datastore = Datastore(self.engine)
        assert (
            self.datastore.indexes.version(self.datastore.indexes.catalog.create(DEFINITION)).table
            == self.version.table
        )

    def teardown(self) -> None:
        clear_failpoints()
        if hasattr(self, "datastore"):
            self.datastore.close()
        super().teardown()

    def trim_to(self, shard: int, count: int) -> None:
        start = self.engine.heads()[shard].log_start
        below = min(start + count, self.saved[shard])
        trim = IndexedTrim(self.datastore.engine, self.datastore.indexes, self.datastore.trim)
        trim.settle(shard)
        while start < below:
            start = trim.step(shard, start, below)

    @rule(shard=st.integers(0, SHARDS - 1), count=st.integers(1, 6))
    def trim(self, shard: int, count: int) -> None:
        self.trim_to(shard, count)

    @rule(
        shard=st.integers(0, SHARDS - 1),
        count=st.integers(1, 6),
        place=st.sampled_from(TRIM_PLACES),
    )
    def trim_and_crash(self, shard: int, count: int, place: str) -> None:
        set_failpoint(place, "raise")
        with suppress(FailpointReached):
            self.trim_to(shard, count)
        clear_failpoints()
        self.trim_to(shard, 0)


class ErasedMachine(TrimmedMachine):
    """The same with rows that are erased, which crashes at each failpoint. Once the keeper has come
    to the end there is nothing of an erased row in the index: no entry, no tombstone, with any
    bodies that the row still has."""

    @rule(row=st.integers(0, 2))
    def erase(self, row: int) -> None:
        self.datastore.erase_row(UUID(int=row))

    @rule(row=st.integers(0, 2), place=st.sampled_from(ERASE_PLACES), at_pass=st.integers(1, 2))
    def erase_and_crash(self, row: int, place: str, at_pass: int) -> None:
        set_failpoint(
            f"{self.kind}.{place}" if place.startswith("erase.") else place, "raise", at_pass
        )
        with suppress(FailpointReached):
            self.datastore.erase_row(UUID(int=row))
        clear_failpoints()

    @invariant()
    def nothing_is_left_of_an_erased_row(self) -> None:
        heads = self.engine.heads()
        if any(self.saved[shard] < heads[shard].watermark for shard in range(SHARDS)):
            return
        erased = {
            row
            for row in (UUID(int=number).bytes for number in range(3))
            if any(c.column_name == ERASED_COLUMN for c in self.engine.row_cells(row))
        }
        left = [
            entry
            for shard in range(SHARDS)
            for entry in self.engine.indexes.walk(self.version.table, shard, None, 1000)
            if entry.row_key in erased
        ]
        assert left == []


_Late = tuple[Mapping[int, Sequence[Entry]], Mapping[int, int]]
"""Entries, and the fences that they are written under."""


class _Recorder(IndexStoreProxy):
    """Reads through, and keeps the writes to come."""

    def __init__(self, store: IndexStore) -> None:
        super().__init__(store)
        self.writes: list[_Late] = []

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
    ) -> None:
        self.writes.append((entries, fences))


def test_a_sqlite_index_equals_the_cells() -> None:
    class SqliteMachine(IndexMachine):
        kind = "sqlite"

    run_state_machine_as_test(
        SqliteMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


def test_a_sqlite_index_equals_the_cells_after_trims() -> None:
    class SqliteMachine(TrimmedMachine):
        kind = "sqlite"

    run_state_machine_as_test(
        SqliteMachine, settings=settings(max_examples=50, stateful_step_count=40, deadline=None)
    )


def test_nothing_is_left_of_an_erased_row_in_a_sqlite_index() -> None:
    class SqliteMachine(ErasedMachine):
        kind = "sqlite"

    run_state_machine_as_test(
        SqliteMachine, settings=settings(max_examples=50, stateful_step_count=30, deadline=None)
    )


@pytest.mark.integration
@pytest.mark.xdist_group("mariadb")
def test_nothing_is_left_of_an_erased_row_in_a_mysql_index(either_server: MariaDB) -> None:
    class MySqlMachine(ErasedMachine):
        kind = "mysql"
        server = either_server

    run_state_machine_as_test(
        MySqlMachine, settings=settings(max_examples=5, stateful_step_count=20, deadline=None)
    )


@pytest.mark.parametrize("number", SEEDS_THAT_FAILED)
def test_trims_and_erasures_leave_a_sqlite_index_right_with_seeds_that_failed_once(
    number: int,
) -> None:
    class SqliteMachine(ErasedMachine):
        kind = "sqlite"

    run_state_machine_as_test(
        seed(number)(SqliteMachine),
        settings=settings(max_examples=60, stateful_step_count=40, deadline=None, database=None),
    )


@pytest.mark.integration
@pytest.mark.xdist_group("mariadb")
@pytest.mark.parametrize("number", SEEDS_THAT_FAILED)
def test_trims_and_erasures_leave_a_mysql_index_right_with_seeds_that_failed_once(
    either_server: MariaDB, number: int
) -> None:
    class MySqlMachine(ErasedMachine):
        kind = "mysql"
        server = either_server

    run_state_machine_as_test(
        seed(number)(MySqlMachine),
        settings=settings(max_examples=8, stateful_step_count=40, deadline=None, database=None),
    )


@pytest.mark.integration
@pytest.mark.xdist_group("mariadb")
def test_a_mysql_index_equals_the_cells(either_server: MariaDB) -> None:
    class MySqlMachine(IndexMachine):
        kind = "mysql"
        server = either_server

    run_state_machine_as_test(
        MySqlMachine, settings=settings(max_examples=12, stateful_step_count=25, deadline=None)
    )


@pytest.mark.integration
@pytest.mark.xdist_group("mariadb")
def test_a_mysql_index_equals_the_cells_after_trims(either_server: MariaDB) -> None:
    class MySqlMachine(TrimmedMachine):
        kind = "mysql"
        server = either_server

    run_state_machine_as_test(
        MySqlMachine, settings=settings(max_examples=8, stateful_step_count=25, deadline=None)
    )
