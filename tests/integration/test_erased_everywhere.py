"""After an erasure no version of an index has the row: not a retired one that trims passed by, not one whose drop died, not one whose trim died."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from store.cells import ERASED_COLUMN
from store.datastore import Datastore
from store.engines.sqlite_scrub import scrub_files
from store.failpoints import FailpointReached, set_failpoint
from store.indexes import catalog
from store.indexes.definition import parse_definition
from store.indexes.keeper import IndexKeeper
from store.indexes.trimmed import IndexedTrim
from store.indexes.version import IndexVersion
from tests.services.made_of_cells import BY_SECRET

pytestmark = pytest.mark.integration

ROW = UUID(int=77)
SHARDS = 4
FIRST, SECOND = "Jane Doe before her wedding", "Jane D. Roe"


def kept(datastore: Datastore, definition: str | None = None) -> IndexVersion:
    """A version that has come to the ends of the logs, and answers."""
    record = datastore.indexes.catalog.create(BY_SECRET if definition is None else parse_definition(definition))
    version = datastore.indexes.version(record)
    datastore.engine.indexes.create(version.table)
    keeper = IndexKeeper(version, datastore.engine.indexes, datastore.engine.row_cells, new=True)
    for shard, head in datastore.heads().items():
        if cells := datastore.engine.scan(shard, head.log_start, 1_000):
            keeper.apply(shard, cells)
    datastore.indexes.catalog.switch(record.definition.table, record.number)
    return version


def of_row(datastore: Datastore, version: IndexVersion) -> int:
    walked = [entry for shard in range(SHARDS) for entry in datastore.engine.indexes.walk(version.table, shard, None, 1_000)]
    return sum(entry.row_key == ROW.bytes for entry in walked)


def bytes_in(directory: Path) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path.name for path in files if any(text.encode() in path.read_bytes() for text in (FIRST, SECOND))]


def filled(directory: Path) -> Datastore:
    datastore = Datastore.open_embedded(directory, shards=SHARDS)
    datastore.put_cells([(ROW, "BASE", 1, {"secret": FIRST}), (ROW, "BASE", 2, {"secret": SECOND}), (UUID(int=5), "BASE", 1, {"secret": "another"})])
    return datastore


def retire(datastore: Datastore) -> IndexVersion:
    old = kept(datastore)
    changed = """
table: by_secret
datastore: trips
column_defs:
  - column_key: BASE
    fields: [{field: secret, type: string}, {field: other, type: string}]
"""
    kept(datastore, changed)
    return old


def test_a_retired_version_has_nothing_of_a_row_whose_cells_were_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "GRACE_S", 0.0)
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


def test_what_a_trim_that_died_left_in_index_and_notes_goes_with_the_erasure(tmp_path: Path) -> None:
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
