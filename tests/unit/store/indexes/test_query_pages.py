"""Pages of a query over several shard values: each row is on one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.kept_index import caught_up, index_worker, made_index

DEFINITION = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
    " driver, type: string}]}]}"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path, shards=1) as opened:
        yield opened


@pytest.mark.parametrize("order_by", [None, "driver"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_every_row_of_several_values_is_on_one_page(
    store: Datastore, order_by: str | None, descending: bool, limit: int
) -> None:
    """Row keys of the second value lie before those of the first, and behind them."""
    drivers = {8: "ann", 9: "ann", 1: "bob", 2: "bob", 12: "bob", 5: "cy"}
    with index_worker(store):
        version = made_index(store, DEFINITION)
        store.put_cells([(UUID(int=n), "BASE", 1, {"driver": d}) for n, d in drivers.items()])
        caught_up(store, version)
        seen: list[int] = []
        cursor: str | None = None
        while True:
            page = store.query_index(
                "by_driver",
                ["ann", "bob", "cy"],
                order_by=order_by,
                descending=descending,
                limit=limit,
                cursor=cursor,
            )
            seen += [row.row_key.int for row in page.rows]
            assert len(seen) <= len(drivers)
            if (cursor := page.cursor) is None:
                break
        assert sorted(seen) == sorted(drivers)
