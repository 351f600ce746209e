"""Writers of index entries whose cells are trimmed or erased between their read and their write
(X6), over every engine: each is held just before a write while the others do their work, so what
comes late comes late every time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import NewCell, StoredCell, new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_fences import Fences
from cellfeed.store.engines.contract.indexes import (
    NOTHING,
    UNFENCED,
    Entry,
    IndexStore,
    IndexTable,
    RowsBelow,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import StaleView, StorageUnavailable
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.trimmed import IndexedTrim
from cellfeed.store.indexes.version import IndexVersion
from tests.support.index_store_proxy import IndexStoreProxy

COLUMNS = (
    "[{column_name: BASE, fields: [{field: driver, type: string}]}, {column_name: STATUS, fields:"
    " [{field: state, type: string}]}]"
)
DEFINITION = parse_definition(f"{{table: by_driver, datastore: trips, column_defs: {COLUMNS}}}")
CHANGED = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields:"
    " [{field: driver, type: string}]}]}"
)
ROW, OTHER = UUID(int=1), UUID(int=2)


class _Held(IndexStoreProxy):
    """Before its first write (or the first removal) ``meanwhile`` is done."""

    def __init__(
        self, store: IndexStore, meanwhile: Callable[[], object], *, at_removal: bool = False
    ) -> None:
        super().__init__(store)
        self.meanwhile = meanwhile
        self.at_removal = at_removal
        self.refused = 0
        self.held = False

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
    ) -> None:
        self._write(lambda: self.store.apply(table, entries, fences), not self.at_removal)

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        instead: Mapping[int, Sequence[Entry]] = NOTHING,
    ) -> None:
        self._write(lambda: self.store.remove(table, entries, fences, instead), self.at_removal)

    def _write(self, write: Callable[[], None], holds: bool) -> None:
        if holds and not self.held:
            self.held = True
            self.meanwhile()
        try:
            write()
        except StaleView:
            self.refused += 1
            raise


class _Index:
    """A datastore with one shard and an index of it."""

    def __init__(self, engine: SqliteEngine | MySqlEngine) -> None:
        self.datastore = Datastore(engine)
        self.engine = engine
        self.store: IndexStore = engine.indexes
        self.version = self.datastore.indexes.version(
            self.datastore.indexes.catalog.create(DEFINITION)
        )
        self.store.create(self.version.table)
        self.keeper = self.keeper_of(self.store)

    def keeper_of(self, store: IndexStore) -> IndexKeeper:
        return IndexKeeper(self.version, store, self.engine.row_cells)

    def put(self, *cells: NewCell) -> list[StoredCell]:
        start = self.engine.heads()[0].next_added_id
        self.engine.put(list(cells))
        return self.engine.scan(0, start, len(cells))

    def log(self, start: int = 0) -> list[StoredCell]:
        return self.engine.scan(0, start, 1_000)

    def trim(self, below: int) -> None:
        IndexedTrim(self.engine, self.datastore.indexes, self.datastore.trim).step(
            0, self.engine.heads()[0].log_start, below
        )

    def entries(self) -> list[tuple[str, int, bool]]:
        """Of each entry the driver, the row, and whether it is live."""
        found = self.store.walk(self.version.table, 0, None, 100)
        return [
            (str(entry.values[0], "ascii"), UUID(bytes=entry.row_key).int, entry.live)
            for entry in found
            if isinstance(entry.values[0], bytes)
        ]


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("mysql", marks=[pytest.mark.integration, pytest.mark.xdist_group("mariadb")]),
    ]
)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Index]:
    engine: SqliteEngine | MySqlEngine
    if request.param == "sqlite":
        engine = SqliteEngine(tmp_path, "trips", 1)
    else:
        engine = MySqlEngine(
            MySqlServer(request.getfixturevalue("empty_mariadb").url), "trips", 1, create=True
        )
    made = _Index(engine)
    yield made
    made.datastore.close()


def base(row: UUID, ref: int, driver: str) -> NewCell:
    return new_cell(row, "BASE", ref, {"driver": driver})


def status(row: UUID, ref: int, state: str) -> NewCell:
    return new_cell(row, "STATUS", ref, {"state": state})


def test_a_worker_that_was_overtaken_does_not_write_what_was_trimmed_since(index: _Index) -> None:
    cells = index.put(base(ROW, 1, "ann"))

    def overtake_and_trim() -> None:
        index.keeper.apply(0, cells)
        index.trim(1)
        assert index.entries() == []

    late = _Held(index.store, overtake_and_trim)
    index.keeper_of(late).apply(0, cells)
    assert (late.held, late.refused) == (True, 1)
    assert index.entries() == []


def test_what_is_left_of_a_batch_is_written_when_the_rest_of_it_was_trimmed(index: _Index) -> None:
    cells = index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"))

    def overtake_and_trim() -> None:
        index.keeper.apply(0, cells[:1])
        index.trim(1)

    late = _Held(index.store, overtake_and_trim)
    keeper = index.keeper_of(late)
    keeper.apply(0, cells)
    assert index.entries() == [("bob", 2, True)]
    keeper.apply(0, index.put(base(ROW, 1, "ann")))
    assert index.entries() == [("ann", 1, True), ("bob", 2, True)], "put anew, it is there anew"
    assert late.refused == 1, "the fence is known once it has been read again"


def test_the_owner_of_a_shard_does_not_write_of_an_older_cell_that_is_being_trimmed(
    index: _Index,
) -> None:
    """The cell with the driver lies before its batch: it was read of what came before."""
    index.keeper.apply(0, index.put(base(ROW, 1, "ann")))
    batch = index.put(new_cell(ROW, "STATUS", 1, {"state": "done"}))
    late = _Held(index.store, lambda: index.trim(1))
    index.keeper_of(late).apply(0, batch)
    assert late.refused == 1
    assert index.entries() == []


def test_a_worker_that_was_overtaken_does_not_write_what_was_erased_since(index: _Index) -> None:
    cells = index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"))

    def overtake_and_erase() -> None:
        index.keeper.apply(0, cells)
        index.datastore.erase_row(ROW)
        index.keeper.apply(0, index.log(2))
        assert index.entries() == [("bob", 2, True)]

    late = _Held(index.store, overtake_and_erase)
    index.keeper_of(late).apply(0, cells)
    assert late.refused == 1
    assert index.entries() == [("bob", 2, True)]


def test_a_row_whose_bodies_are_still_being_erased_makes_no_entry(index: _Index) -> None:
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


def test_the_index_takes_the_entries_out_where_the_program_died_that_erased(index: _Index) -> None:
    index.keeper.apply(
        0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"), base(ROW, 2, "eve"))
    )
    set_failpoint("datastore.erase.told", "raise")
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
        "datastore.erase.told",
        "index.erase.removed",
        "datastore.erase.taken_out",
    ],
)
def test_a_version_that_is_made_and_built_in_the_middle_of_an_erasure_has_nothing_of_the_row(
    index: _Index, place: str
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


def test_a_keeper_of_a_new_version_reads_of_nodes_that_have_all_that_was_before_it_began(
    index: _Index,
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


def test_a_trim_keeps_an_entry_that_a_newer_cell_made_while_it_looked(
    index: _Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes two newer entries: one that it takes for wrong, and one that is put again just
    then."""
    index.keeper.apply(
        0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"), base(ROW, 2, "ann"))
    )
    keeper = index.keeper_of(index.store)

    def put_more() -> None:
        keeper.apply(0, index.put(base(ROW, 3, "ann"), base(OTHER, 1, "bob")))

    held = _Held(index.store, put_more, at_removal=True)
    monkeypatch.setattr(index.engine, "_indexes", held)
    index.trim(2)
    assert held.held
    assert index.entries() == [("ann", 1, True), ("bob", 2, True)]
    assert [entry.refs for entry in index.store.walk(index.version.table, 0, None, 10)] == [
        (3, None),
        (1, None),
    ]


def test_a_trim_that_is_overtaken_by_another_one_looks_again(
    index: _Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.keeper.apply(0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob")))
    seen: list[int] = []

    def finish_and_put_anew() -> None:
        seen.append(
            IndexedTrim(index.engine, index.datastore.indexes, index.datastore.trim).settle(0)
        )
        index.keeper.apply(0, index.put(base(ROW, 1, "ann")))

    held = _Held(index.store, finish_and_put_anew, at_removal=True)
    monkeypatch.setattr(index.engine, "_indexes", held)
    index.trim(2)
    assert seen == [2]
    assert held.refused == 1
    assert index.entries() == [("ann", 1, True)]


def test_a_row_whose_entry_is_made_again_is_never_missing(
    index: _Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell of one column is trimmed, so the entry loses its part of it and stays."""
    index.keeper.apply(0, index.put(status(ROW, 1, "new"), base(ROW, 1, "ann")))
    seen: list[list[tuple[str, int, bool]]] = []

    class Watched(IndexStoreProxy):
        def remove(self, *given: Any) -> None:
            super().remove(*given)
            seen.append(index.entries())

    monkeypatch.setattr(index.engine, "_indexes", Watched(index.store))
    index.trim(1)
    assert seen == [[("ann", 1, True)]]
    [entry] = index.store.walk(index.version.table, 0, None, 10)
    assert entry.refs == (1, None)


def test_a_note_of_cells_that_are_still_there_survives_the_settling_of_another(
    index: _Index,
) -> None:
    """A trim has noted the places, and an erasure settles the shard before the cells go."""
    index.keeper.apply(0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob")))
    settled: list[int] = []

    def trim_later(shard: int, below: int) -> int:
        settled.append(
            IndexedTrim(index.engine, index.datastore.indexes, index.datastore.trim).settle(shard)
        )
        return index.datastore.trim(shard, below)

    IndexedTrim(index.engine, index.datastore.indexes, trim_later).step(0, 0, 1)
    assert settled == [0]
    assert index.entries() == [("bob", 2, True)]
    assert index.engine.state.list("trims/") == []


def test_a_row_that_is_erased_meanwhile_leaves_the_note(index: _Index) -> None:
    """The place that a note names is a value of the row."""
    index.keeper.apply(0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob")))
    seen: list[list[bytes]] = []

    def trim_later(shard: int, below: int) -> int:
        index.datastore.erase_row(ROW)
        seen.append([entry.value for entry in index.engine.state.list("trims/")])
        return index.datastore.trim(shard, below)

    IndexedTrim(index.engine, index.datastore.indexes, trim_later).step(0, 0, 2)
    [[note]] = seen
    assert b"ann" not in note
    assert b"bob" in note
    assert index.entries() == []


def test_a_row_that_is_erased_before_the_note_is_written_is_not_in_it(
    index: _Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.keeper.apply(0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob")))
    state, seen = index.engine.state, list[bytes]()
    commit = state.commit

    def erase_first(write: Mapping[str, bytes | None], **given: object) -> int | None:
        monkeypatch.setattr(state, "commit", commit)
        index.datastore.erase_row(ROW)
        return commit(write, **given)  # type: ignore[arg-type]

    def trim_later(shard: int, below: int) -> int:
        seen.extend(entry.value for entry in state.list("trims/"))
        return index.datastore.trim(shard, below)

    monkeypatch.setattr(state, "commit", erase_first)
    IndexedTrim(index.engine, index.datastore.indexes, trim_later).step(0, 0, 2)
    [note] = seen
    assert b"ann" not in note


class _Storage:
    """A storage of fences that may be away."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.away = False

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]:
        return {shard: self.numbers[shard] for shard in shards if shard in self.numbers}

    def set_fences(self, numbers: Mapping[int, int]) -> None:
        if self.away:
            raise StorageUnavailable("away")
        for shard, number in numbers.items():
            self.numbers[shard] = max(number, self.numbers.get(shard, 0))


def test_a_fence_is_the_same_on_every_storage_once_it_was_read_whatever_a_raise_left() -> None:
    first, second, third = _Storage(), _Storage(), _Storage()
    fences = Fences([first, second])
    before = fences.read(range(3))
    assert first.numbers == second.numbers == before
    second.away = True
    with pytest.raises(StorageUnavailable):
        fences.raise_([1])
    assert first.numbers[1] > second.numbers[1] == before[1]
    with pytest.raises(StorageUnavailable):
        fences.read([0, 1])
    second.away = False
    after = fences.read([0, 1])
    assert after == {0: before[0], 1: first.numbers[1]}
    assert first.numbers == second.numbers
    assert Fences([first, second, third]).read(range(3)) == third.numbers == first.numbers, (
        "one that is new has the highest number from the first look on"
    )
    raised = fences.raise_([2])[2]
    assert raised == first.numbers[2] == second.numbers[2] > third.numbers[2]


def test_a_write_under_a_fence_that_was_raised_is_refused(index: _Index) -> None:
    [entry] = _entry_of(index)
    table, old = index.version.table, index.store.fences([0])[0]
    new = index.store.raise_fences([0])[0]
    assert new > old
    for write_late in (index.store.apply, index.store.remove):
        with pytest.raises(StaleView, match="shard 0 were trimmed or erased"):
            write_late(table, {0: [entry]}, {0: old})
    index.store.remove(table, {0: [entry]}, {0: new})
    index.store.apply(table, {0: [entry._replace(row_key=OTHER.bytes)]}, {0: new})
    assert index.entries() == [("ann", 2, True)]


def test_whoever_raises_a_fence_sees_all_that_is_ever_written_under_lower_numbers(
    index: _Index,
) -> None:
    """Writers write a new entry each time, with the number that they write under as its ref key; a
    remover raises and looks."""
    [entry] = _entry_of(index)
    table, done, rows = index.version.table, threading.Event(), itertools.count(10)
    refused: list[int] = []

    def write() -> None:
        while not done.is_set():
            fence = index.store.fences([0])[0]
            row_key = UUID(int=next(rows)).bytes
            try:
                index.store.apply(
                    table, {0: [entry._replace(row_key=row_key, refs=(fence, None))]}, {0: fence}
                )
            except StaleView:
                refused.append(fence)

    def written_below(number: int) -> set[bytes]:
        return {
            each.row_key
            for each in index.store.walk(table, 0, None, 100_000)
            if each.refs[0] is not None and each.refs[0] < number
        }

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        seen: list[tuple[int, set[bytes]]] = []
        deadline_s = time.monotonic() + 60
        while len(seen) < 20 or (not refused and time.monotonic() < deadline_s):
            number = index.store.raise_fences([0])[0]
            seen.append((number, written_below(number)))
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert refused
    assert [written_below(number) for number, _ in seen] == [found for _, found in seen]


def _entry_of(index: _Index) -> list[Entry]:
    index.keeper.apply(0, index.put(base(ROW, 1, "ann")))
    return index.store.walk(index.version.table, 0, None, 1)
