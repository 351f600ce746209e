"""A small index over trips, cells for it, and its entries."""

from __future__ import annotations

from uuid import UUID

from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.version import IndexVersion
from tests.support.kept_index import caught_up

SMALL = parse_definition("""
table: by_driver
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: driver, type: string}, {field: fare, type: decimal}]
""")


def put_trip(
    datastore: Datastore, row: int, ref_key: int, driver: object, fare: object = "1"
) -> None:
    datastore.put_cell(UUID(int=row), "BASE", ref_key, {"driver": driver, "fare": fare})


def drivers(datastore: Datastore, version: IndexVersion) -> list[tuple[str, int]]:
    caught_up(datastore, version)
    found = datastore.query_index("by_driver", ["ann", "bob"], mode="fast", order_by="driver").rows
    return [(str(row.fields["driver"]), row.row_key.int) for row in found]
