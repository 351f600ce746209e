"""A state machine over the versions of an index, over every engine: definitions come and go beside
puts, trims and erasures (in the middle of one, too); a keeper of its own, which crashes and runs
batches again, builds each version; queries go over to a version once it is complete; versions are
dropped, in the middle of their building too, and made again. Every version that is kept equals the
cells by its own definition, once it is at the end of every log (I18); a version that answers is
always whole."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.bridge.indexes.status import drop_versions
from cellfeed.bridge.indexes.worker import is_complete, switch
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell, StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import Entry
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import NotFound, StorageUnavailable
from cellfeed.store.failpoints import (
    FAILPOINTS,
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from cellfeed.store.indexes.definition import IndexDefinition
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.records import VersionRecord
from cellfeed.store.indexes.trimmed import IndexedTrim
from cellfeed.store.indexes.values import decode
from cellfeed.store.indexes.version import IndexVersion, RowView
from tests.contract.test_index_model import CELLS, DEFINITION, ERASE_PLACES, SHARDS
from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB


def _defined(columns: str) -> IndexDefinition:
    return parse_definition(f"{{table: by_driver, datastore: trips, column_defs: {columns}}}")


DEFINITIONS = [
    DEFINITION,
    _defined("[{column_name: BASE, fields: [{field: driver, type: string}]}]"),
    _defined(
        "[{column_name: BASE, fields: [{field: n, type: int}, {field: driver, type: string}]}]"
    ),  # another shard field
    _defined(
        "[{column_name: STATUS, fields: [{field: state.name, type: string}]}, {column_name: BASE,"
        " fields: [{field: n, type: int}]}]"
    ),
]
KEEP_PLACES = sorted(
    name
    for name in FAILPOINTS
    if name in ("index.before_entries", "index.before_tombstones", "index.after_tombstones")
)
DROP_PLACES = sorted(name for name in FAILPOINTS if name.startswith("index.drop."))
SHARD_VALUES: dict[str, list[str] | list[int]] = {
    "driver": ["ann", "bob", "eve"],
    "n": [1, 2, 3],
    "state.name": ["x", "y", "z"],
}


class _Kept(NamedTuple):
    version: IndexVersion
    keeper: IndexKeeper


class VersionsMachine(RuleBasedStateMachine):
    server: MariaDB | None = None

    @initialize()
    def open(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cellfeed-versions-"))
        self.engine: Engine = (
            SqliteEngine(self.directory / "trips", "trips", SHARDS)
            if self.server is None
            else MySqlEngine(MySqlServer(self.server.address), "trips", SHARDS, create=True)
        )
        self.datastore = Datastore(self.engine)
        # Made now: the first index is recorded in the file of the cells; a step of an erasure holds
        # its lock while this one thread plays the other process.
        assert self.engine.indexes is not None
        self.coordinator = StoreCoordinator(self.engine.state)
        self.catalog = self.datastore.indexes.catalog
        self.kept: dict[int, _Kept] = {}
        self.newest = 0
        self.current: int | None = None

    def teardown(self) -> None:
        clear_failpoints()
        if hasattr(self, "datastore"):
            self.coordinator.close()
            self.datastore.close()
            shutil.rmtree(self.directory)
            if self.server is not None:
                local_mariadb.drop_all_databases(self.server)

    # --- cells ------------------------------------------------------------------------------------

    @rule(cells=st.lists(CELLS, min_size=1, max_size=5))
    def put(self, cells: list[NewCell]) -> None:
        self.engine.put(cells)

    @rule(shard=st.integers(0, SHARDS - 1), count=st.integers(1, 4))
    def trim(self, shard: int, count: int) -> None:
        """The ends that every version has passed, as a trim needs them."""
        start = self.engine.heads()[shard].log_start
        below = min(
            [
                start + count,
                self.engine.heads()[shard].watermark,
                *(self.reached(number).get(shard, 0) for number in self.kept),
            ]
        )
        trim = IndexedTrim(self.datastore.engine, self.datastore.indexes, self.datastore.trim)
        while start < below:
            start = trim.step(shard, start, below)

    @rule(
        row=st.integers(0, 2),
        place=st.sampled_from(ERASE_PLACES),
        definition=st.sampled_from([None, *DEFINITIONS]),
    )
    def erase(self, row: int, place: str, definition: IndexDefinition | None) -> None:
        """In the middle of it a version is made and built, or the program dies."""
        place = (
            f"{'sqlite' if self.server is None else 'mysql'}.{place}"
            if place.startswith("erase.")
            else place
        )
        # On a server tables are made under the shard's counter, which is locked there: a version
        # that is built then was made before.
        made_before = place == "mysql.erase.before_commit"
        if definition is not None and made_before:
            self.create(definition)

        def meanwhile() -> None:
            unwatch_failpoint(place)
            if definition is None:
                raise FailpointReached(place)
            if not made_before:
                self.create(definition)
            self.bring_to_the_ends(max(self.kept))

        watch_failpoint(place, meanwhile)
        with suppress(FailpointReached):
            self.datastore.erase_row(UUID(int=row))
        clear_failpoints()

    # --- versions ---------------------------------------------------------------------------------

    @rule(definition=st.sampled_from(DEFINITIONS))
    def create(self, definition: IndexDefinition) -> None:
        """Once more, or as the newest version that is kept has it: then nothing is made."""
        record = self.catalog.create(definition)
        if record.number not in self.kept:
            assert record.number > self.newest, "a number is never used again"
            self.newest = record.number
            self.keep_from_now_on(record)
        assert max(self.kept) == record.number
        assert self.kept[record.number].version.definition == definition

    def keep_from_now_on(self, record: VersionRecord) -> None:
        version = self.datastore.indexes.version(record)
        self.engine.indexes.create(version.table)
        self.kept[record.number] = _Kept(
            version, IndexKeeper(version, self.engine.indexes, self.engine.row_cells, new=True)
        )

    @rule(
        data=st.data(),
        shard=st.integers(0, SHARDS - 1),
        count=st.integers(1, 6),
        save=st.booleans(),
    )
    @precondition(lambda self: self.kept)
    def keep(self, data: st.DataObject, shard: int, count: int, save: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.kept)))
        scanned = self.scan(number, shard, count)
        self.apply(number, shard, scanned)
        if save and scanned:
            self.save(number, shard, scanned[-1].added_id + 1)

    @rule(data=st.data(), shard=st.integers(0, SHARDS - 1), place=st.sampled_from(KEEP_PLACES))
    @precondition(lambda self: self.kept)
    def keep_and_crash(self, data: st.DataObject, shard: int, place: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.kept)))
        set_failpoint(place, "raise")
        with suppress(FailpointReached):
            self.apply(number, shard, self.scan(number, shard, 6))
        clear_failpoints()

    @rule(data=st.data())
    @precondition(lambda self: self.kept)
    def catch_up(self, data: st.DataObject) -> None:
        self.bring_to_the_ends(data.draw(st.sampled_from(sorted(self.kept))))

    def bring_to_the_ends(self, number: int) -> None:
        for shard in range(SHARDS):
            while scanned := self.scan(number, shard, 100):
                self.apply(number, shard, scanned)
                self.save(number, shard, scanned[-1].added_id + 1)

    @rule(completed=st.booleans())
    def look(self, completed: bool) -> None:
        """As a worker does: queries go over to the complete version. An older program's worker adds
        nothing to it before."""
        for record in self.catalog.all():
            for version in record.versions:
                if version.state == "building" and is_complete(
                    self.datastore, self.coordinator, version
                ):
                    assert self.is_at_the_ends(version.number)
                    if completed:
                        table = self.datastore.indexes.version(version).table
                        self.datastore.engine.indexes.complete(table)
                    switch(self.catalog, version)
                    self.current = max(version.number, self.current or 0)

    @rule(data=st.data(), place=st.sampled_from([None, *DROP_PLACES]))
    @precondition(lambda self: self.kept)
    def drop(self, data: st.DataObject, place: str | None) -> None:
        """A version in any state, or all of them; killed in between, it is dropped again."""
        number = data.draw(st.sampled_from([None, *sorted(self.kept)]))
        if place is not None:
            set_failpoint(place, "raise")
            with suppress(FailpointReached):
                drop_versions(self.datastore, self.coordinator, "by_driver", number)
            clear_failpoints()
        with suppress(NotFound):  # it came to its end before
            drop_versions(self.datastore, self.coordinator, "by_driver", number)
        for gone in sorted(self.kept) if number is None else [number]:
            version = self.kept.pop(gone).version
            assert self.coordinator.fetch_offsets(version.group) == {}
            if gone == self.current:
                self.current = None

    # --- what holds -------------------------------------------------------------------------------

    @invariant()
    def every_version_at_the_ends_of_the_logs_is_what_the_cells_say(self) -> None:
        for number, kept in getattr(self, "kept", {}).items():
            if self.is_at_the_ends(number):
                assert self.found(kept.version) == self.expected(kept.version)
                for shard in range(SHARDS):
                    assert [
                        entry
                        for entry in self.engine.indexes.walk(kept.version.table, shard, None, 1000)
                        if self.is_erased(entry.row_key)
                    ] == []

    @invariant()
    def queries_are_answered_from_the_one_version_that_is_current(self) -> None:
        if not hasattr(self, "kept"):
            return
        states = {
            version.number: version.state
            for record in self.catalog.all()
            for version in record.versions
        }
        assert states.keys() == self.kept.keys()
        assert [number for number, state in states.items() if state == "current"] == (
            [] if self.current is None else [self.current]
        )
        self.datastore.indexes._remembered.clear()
        if self.current is None:
            with pytest.raises(StorageUnavailable if self.kept else NotFound):
                self.datastore.query_index("by_driver", "ann")
        elif self.is_at_the_ends(self.current):
            version = self.kept[self.current].version
            fields = version.definition.fields
            wanted = {
                UUID(bytes=entry.row_key): {
                    f.name: None if v is None else decode(f.type, v)
                    for f, v in zip(fields, entry.values, strict=True)
                }
                for entry in self.expected(version).values()
            }
            for mode in ("fresh", "fast"):
                pages = [
                    self.datastore.query_index("by_driver", value, mode=mode)
                    for value in SHARD_VALUES[fields[0].name]
                ]
                assert {page.version for page in pages} == {self.current}
                assert {row.row_key: row.fields for page in pages for row in page.rows} == wanted

    # --- inside -----------------------------------------------------------------------------------

    def reached(self, number: int) -> dict[int, int]:
        return dict(index_positions(self.coordinator, "trips")(self.kept[number].version.group))

    def is_at_the_ends(self, number: int) -> bool:
        reached = self.reached(number)
        return all(
            reached.get(shard, 0) >= head.watermark for shard, head in self.engine.heads().items()
        )

    def scan(self, number: int, shard: int, count: int) -> list[StoredCell]:
        """A version that is begun after a trim begins where the log does."""
        return self.engine.scan(
            shard,
            max(self.reached(number).get(shard, 0), self.engine.heads()[shard].log_start),
            count,
        )

    def apply(self, number: int, shard: int, scanned: list[StoredCell]) -> None:
        kept = self.kept[number]
        columns = kept.version.definition.columns
        if cells := [
            cell
            for cell in scanned
            if cell.column_name == ERASED_COLUMN
            or (cell.column_name in columns and not is_erased(cell.body))
        ]:
            kept.keeper.apply(shard, cells)

    def save(self, number: int, shard: int, location: int) -> None:
        self.coordinator.commit_offsets(
            self.kept[number].version.group, {("trips", shard): CommittedOffset(location)}
        )

    def found(self, version: IndexVersion) -> dict[bytes, Entry]:
        live = [
            entry
            for shard in range(SHARDS)
            for entry in self.engine.indexes.walk(version.table, shard, None, 1000)
            if entry.live
        ]
        assert len({entry.row_key for entry in live}) == len(live)
        return {entry.row_key: entry for entry in live}

    def is_erased(self, row_key: bytes) -> bool:
        """Whether the log tells so; it may have bodies still."""
        return any(cell.column_name == ERASED_COLUMN for cell in self.engine.row_cells(row_key))

    def expected(self, version: IndexVersion) -> dict[bytes, Entry]:
        rows: dict[bytes, Entry] = {}
        for row in range(3):
            if self.is_erased(UUID(int=row).bytes):
                continue
            view = version.views(each.cell for each in self.engine.row([UUID(int=row).bytes])[0])
            if (
                entry := version.entry_of(view.get(UUID(int=row).bytes, RowView([], {})))
            ) is not None:
                rows[entry.row_key] = entry
        return rows


def test_every_version_of_a_sqlite_index_equals_the_cells() -> None:
    run_state_machine_as_test(
        VersionsMachine, settings=settings(max_examples=30, stateful_step_count=30, deadline=None)
    )


@pytest.mark.integration
@pytest.mark.xdist_group("mariadb")
def test_every_version_of_a_mysql_index_equals_the_cells(either_server: MariaDB) -> None:
    class MySqlMachine(VersionsMachine):
        server = either_server

    run_state_machine_as_test(
        MySqlMachine, settings=settings(max_examples=4, stateful_step_count=20, deadline=None)
    )
