"""A query of an index whose entries an erasure has not reached yet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.query import Indexes
from cellfeed.store.indexes.version import IndexVersion

DEFINITION = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields:"
    " [{field: driver, type: string}]}]}"
)
VERSION = IndexVersion(DEFINITION, 1, 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=1) as datastore:
        datastore.engine.indexes.create(VERSION.table)
        yield datastore


@pytest.mark.parametrize("columns", ["*", ["BASE"]], ids=repr)
def test_a_row_whose_body_is_erased_is_not_found_by_its_values(
    store: Datastore, columns: object
) -> None:
    engine, indexes = store.engine, Indexes(store.engine)
    indexes._remembered[DEFINITION.table] = math.inf, VERSION
    engine.put([new_cell(UUID(int=row), "BASE", 1, {"driver": "ann"}) for row in (1, 2)])
    IndexKeeper(VERSION, engine.indexes, engine.row_cells).apply(0, engine.scan(0, 0, 9))

    def found() -> list[int]:
        page = indexes.query(DEFINITION.table, "ann", columns=columns)  # type: ignore[arg-type]
        return [row.row_key.int for row in page.rows]

    assert found() == [1, 2]
    assert engine.erase(UUID(int=1).bytes, 100).done
    assert len(engine.indexes.walk(VERSION.table, 0, None, 9)) == 2, "its entry is still there"
    assert found() == [2]
