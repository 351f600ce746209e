"""After an erasure nothing has the row: no version of an index, no file beside the store, no list
that was written late."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.retry import RetryPolicy
from cellfeed.bridge.typed.rejected_cells import note_rejected, rejected_cells
from cellfeed.store.cells.cell import ERASED_COLUMN, Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.scrub import scrub_files
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from cellfeed.store.indexes import records
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.trimmed import IndexedTrim
from cellfeed.store.indexes.version import IndexVersion
from tests.support.made_of_cells import BY_SECRET
from tests.support.trigger_steps import GROUP, Worker

pytestmark = pytest.mark.integration

ROW = UUID(int=77)
SHARDS = 4
FIRST, SECOND = "Jane Doe before her wedding", "Jane D. Roe"


def kept(datastore: Datastore, definition: str | None = None) -> IndexVersion:
    """A version that has come to the ends of the logs, and answers."""
    record = datastore.indexes.catalog.create(
        BY_SECRET if definition is None else parse_definition(definition)
    )
    version = datastore.indexes.version(record)
    datastore.engine.indexes.create(version.table)
    keeper = IndexKeeper(version, datastore.engine.indexes, datastore.engine.row_cells, new=True)
    for shard, head in datastore.heads().items():
        if cells := datastore.engine.scan(shard, head.log_start, 1_000):
            keeper.apply(shard, cells)
    datastore.indexes.catalog.switch(record.definition.table, record.number)
    return version


def of_row(datastore: Datastore, version: IndexVersion) -> int:
    walked = [
        entry
        for shard in range(SHARDS)
        for entry in datastore.engine.indexes.walk(version.table, shard, None, 1_000)
    ]
    return sum(entry.row_key == ROW.bytes for entry in walked)


def bytes_in(directory: Path) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [
        path.name
        for path in files
        if any(text.encode() in path.read_bytes() for text in (FIRST, SECOND))
    ]


def filled(directory: Path) -> Datastore:
    datastore = Datastore.open_embedded(directory, shards=SHARDS)
    datastore.put_cells(
        [
            (ROW, "BASE", 1, {"secret": FIRST}),
            (ROW, "BASE", 2, {"secret": SECOND}),
            (UUID(int=5), "BASE", 1, {"secret": "another"}),
        ]
    )
    return datastore


def retire(datastore: Datastore) -> IndexVersion:
    old = kept(datastore)
    changed = """
table: by_secret
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: secret, type: string}, {field: other, type: string}]
"""
    kept(datastore, changed)
    return old


def test_a_retired_version_has_nothing_of_a_row_whose_cells_were_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "GRACE_S", 0.0)
    with filled(tmp_path) as datastore:
        old = retire(datastore)
        shard = datastore.shard_of(ROW)
        IndexedTrim(datastore.engine, datastore.indexes, datastore.trim).step(shard, 0, 2)
        assert of_row(datastore, old) == 2
        datastore.erase_row(ROW)
        assert of_row(datastore, old) == 0
    scrub_files(tmp_path / "trips")
    assert bytes_in(tmp_path) == []


def test_a_version_whose_drop_died_has_nothing_of_an_erased_row(tmp_path: Path) -> None:
    with filled(tmp_path) as datastore:
        kept(datastore)
        datastore.indexes.catalog.begin_drop("by_secret")
        datastore.erase_row(ROW)
        datastore.erase_row(ROW)
    scrub_files(tmp_path / "trips")
    assert bytes_in(tmp_path) == []


def test_an_erasure_removes_index_entries_and_notes_that_a_dead_trim_left(
    tmp_path: Path,
) -> None:
    with filled(tmp_path) as datastore:
        version, shard = kept(datastore), datastore.shard_of(ROW)
        set_failpoint("index.trim.trimmed", "raise")
        with pytest.raises(FailpointReached):
            IndexedTrim(datastore.engine, datastore.indexes, datastore.trim).step(shard, 0, 2)
        assert datastore.state.list("trims/")
        datastore.erase_row(ROW)
        assert (of_row(datastore, version), datastore.state.list("trims/")) == (0, [])
        told = [cell.column_name for cell in datastore.engine.row_cells(ROW.bytes)]
        assert told[-1] == ERASED_COLUMN
    scrub_files(tmp_path / "trips")
    assert bytes_in(tmp_path) == []


def test_a_restore_that_was_killed_and_a_renewed_index_leave_nothing_behind_an_erasure(
    tmp_path: Path,
) -> None:
    with filled(tmp_path) as datastore:
        kept(datastore)
        for shard, head in datastore.heads().items():
            datastore.engine.scan(shard, head.log_start, 1)
    place = tmp_path / "trips"
    shutil.copytree(place, tmp_path / "trips.restoring")
    shutil.copy(place / "index.sqlite3", place / "index.sqlite3.replaced-0123abcd")
    (tmp_path / "photos.restoring").mkdir()
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore:
        set_failpoint("sqlite.left.between", "raise")
        with pytest.raises(FailpointReached):
            datastore.erase_row(ROW)
        datastore.erase_row(ROW)
    scrub_files(place)
    assert bytes_in(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "photos.restoring",
        "trips",
        "trips.lock",
    ]


@pytest.mark.parametrize("killed", [False, True])
def test_the_error_of_a_call_that_an_erasure_overtook_is_not_kept(
    tmp_path: Path, killed: bool
) -> None:
    with Datastore.open_embedded(tmp_path, shards=1) as datastore:
        datastore.put_cell(ROW, "BASE", 1, {"secret": SECOND})
        datastore.when_erased(ParkedCells(datastore.state).forget_row)

        @trigger(column="BASE", group=GROUP, retry={Exception: RetryPolicy(1)})
        def erased_meanwhile(row_key: UUID, *, cell: Cell) -> None:
            datastore.erase_row(row_key)
            raise ValueError(cell.body["secret"])

        worker = Worker(datastore, erased_meanwhile)
        if killed:
            set_failpoint("trigger.after_park", "raise")
            with pytest.raises(FailpointReached):
                worker.work()
            assert SECOND in str(worker.parked.all())
            worker = Worker(datastore, erased_meanwhile)
            datastore.put_cell(UUID(int=8), "OTHER", 1, {})
        worker.work()
        assert [
            entry.key for entry in datastore.state.list("") if SECOND.encode() in entry.value
        ] == []


def test_a_reason_that_a_gateway_notes_after_the_erasure_is_not_kept(tmp_path: Path) -> None:
    with filled(tmp_path) as datastore:
        [cell, *_] = datastore.engine.row_cells(ROW.bytes)
        datastore.erase_row(ROW)
        note_rejected(
            datastore.state,
            "BASE",
            datastore.shard_of(ROW),
            [(cell, f"secret is {FIRST!r}, not an integer")],
        )
        assert list(rejected_cells(datastore.state)) == []
