"""An embedded index gets its SQL indexes when a build has all entries, also after a kill."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import Condition, EntrySelect
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.store_files import INDEX_FILE
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    watch_failpoint,
)
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.values import encoder
from cellfeed.store.indexes.version import IndexVersion
from tests.support.kept_index import index_worker, made_index
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

CELLS = 60
COMPLETING = "sqlite.index.before_complete"
DEFINITION = parse_definition(
    """
table: by_driver
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: driver, type: string}, {field: fare, type: int}, {field: day, type: int}]
"""
)


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path, shards=4) as opened:
        opened.put_cells(
            [
                (UUID(int=n), "BASE", 1, {"driver": f"d{n % 2}", "fare": n * 7 % 50, "day": n % 5})
                for n in range(CELLS)
            ]
        )
        yield opened
    clear_failpoints()


def file_of(datastore: Datastore) -> Path:
    engine = datastore.engine
    assert isinstance(engine, SqliteEngine)
    return engine._file.path.with_name(INDEX_FILE)


def made_in(datastore: Datastore, version: IndexVersion) -> tuple[list[str], int]:
    """The SQL indexes of the version's table, and its entries."""
    table = version.table.name
    with closing(sqlite3.connect(file_of(datastore))) as connection:
        names = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? AND sql NOT NULL"
            " ORDER BY name",
            (table,),
        ).fetchall()
        [(entries,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    return [name.removeprefix(f"{table}_") for (name,) in names], entries


def current(datastore: Datastore) -> bool:
    return datastore.indexes.catalog.get("by_driver").current is not None


def test_the_sql_indexes_are_made_once_all_entries_are_there(datastore: Datastore) -> None:
    found: list[tuple[list[str], int, bool]] = []
    version = IndexVersion(DEFINITION, 1, datastore.shards)
    watch_failpoint(
        COMPLETING, lambda: found.append((*made_in(datastore, version), current(datastore)))
    )
    with index_worker(datastore):
        made_index(datastore, DEFINITION)
    assert found == [([], CELLS, False), (["f1"], CELLS, False)]
    assert made_in(datastore, version) == (["f1", "f2"], CELLS)


def test_a_worker_that_dies_between_two_sql_indexes_leaves_the_version_to_the_next(
    datastore: Datastore,
) -> None:
    record = datastore.indexes.catalog.create(DEFINITION)
    version = datastore.indexes.version(record)
    set_failpoint(COMPLETING, "raise", at_pass=2)

    def until_it_dies(worker: IndexWorker) -> bool:
        try:
            worker.look()
        except FailpointReached:
            return True
        return False

    with closing(open_coordinator("store", datastore.state)) as coordinator:
        with closing(IndexWorker(datastore, coordinator, "dies", lease_s=2.0)) as worker:
            wait_until(lambda: until_it_dies(worker), "the worker completes the version")
        assert not current(datastore)
        assert made_in(datastore, version) == (["f1"], CELLS)
    with index_worker(datastore, "next"):
        wait_until(lambda: current(datastore), "the next worker switches")
    assert made_in(datastore, version) == (["f1", "f2"], CELLS)


def test_answers_are_the_same_before_and_after(datastore: Datastore) -> None:
    watched: list[list[list[object]]] = []
    version = IndexVersion(DEFINITION, 1, datastore.shards)
    value = encoder("string")("d1")
    shard = version.shard_of_value(value)
    asked = [
        EntrySelect(shard, value, (Condition(1, ">", (10,)),), order, descending, None, 100)
        for order in (None, 1, 2)
        for descending in (False, True)
    ]

    def ask() -> None:
        found = datastore.engine.indexes.select(version.table, asked)
        watched.append([list(each) for each in found.entries])

    watch_failpoint(COMPLETING, ask)
    with index_worker(datastore):
        made_index(datastore, DEFINITION)
    ask()
    assert len(watched) == 3
    assert watched[0] == watched[1] == watched[2]
    assert all(watched[0])


def test_a_version_that_was_switched_without_them_gets_them_from_its_next_worker(
    datastore: Datastore,
) -> None:
    with index_worker(datastore):
        version = made_index(datastore, DEFINITION)
    with closing(sqlite3.connect(file_of(datastore))) as connection:
        connection.execute(f"DROP INDEX {version.table.name}_f2")
        connection.commit()
    assert made_in(datastore, version) == (["f1"], CELLS)
    with index_worker(datastore, "next"):
        wait_until(
            lambda: made_in(datastore, version) == (["f1", "f2"], CELLS), "they are made again"
        )
