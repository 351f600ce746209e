"""Things that are made of cells and have to go with them when a row is erased: entries of an index
by a text in each body, and parked cells whose errors quote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.version import IndexVersion
from tests.support.parked import parked_cell

BY_SECRET: Final = parse_definition("""
table: by_secret
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: secret, type: string}]
""")


def indexed_and_parked(
    datastore: Datastore, secrets: Mapping[UUID, str]
) -> tuple[IndexVersion, IndexKeeper]:
    """An index that has reached the ends of the logs; a parked cell for each of these rows,
    whose error quotes the row's text."""
    version = datastore.indexes.version(datastore.indexes.catalog.create(BY_SECRET))
    datastore.engine.indexes.create(version.table)
    keeper = IndexKeeper(version, datastore.engine.indexes, datastore.engine.row_cells)
    for shard in range(datastore.shards):
        keeper.apply(shard, datastore.engine.scan(shard, 0, 10_000))
    for number, (row, secret) in enumerate(secrets.items()):
        parked = parked_cell(
            datastore.shard_of(row),
            number,
            group="g",
            row_key=str(row),
            ref_key=0,
            error=f"ValueError: {secret}",
            parked_at_us=0,
            last_tried_at_us=0,
        )
        datastore.state.commit(dict(ParkedCells(datastore.state).entry(parked)))
    return version, keeper
