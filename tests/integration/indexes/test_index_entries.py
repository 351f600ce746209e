"""Entries of an index whose rows change, and the versions of an index."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.status import drop_versions, version_status
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import NotFound
from cellfeed.store.indexes.definition import IndexDefinition
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.kept_index import built, caught_up, index_worker, made_index
from tests.support.small_index import SMALL, drivers, put_trip
from tests.support.waiting import wait_until


def test_an_entry_moves_when_its_shard_field_changes_and_goes_when_it_is_missing(
    datastore: Datastore,
) -> None:
    with index_worker(datastore) as coordinator:
        version = made_index(datastore, SMALL)
        for ref_key, driver, expected in (
            (5, "ann", [("ann", 1)]),
            (7, "bob", [("bob", 1)]),
            (6, "ann", [("bob", 1)]),
            (8, None, []),
            (9, "ann", [("ann", 1)]),
        ):
            put_trip(datastore, 1, ref_key, driver)
            assert drivers(datastore, version) == expected
        put_trip(datastore, 2, 1, "ann", "no number")
        assert drivers(datastore, version) == [("ann", 1), ("ann", 2)]
        assert (
            datastore.query_index("by_driver", "ann", [("fare", "<", 5)]).rows[0].row_key.int == 1
        )
    status = version_status(
        datastore, coordinator, datastore.indexes.catalog.get("by_driver").versions[0]
    )
    assert (status.state, status.cells_behind, status.unfit) == ("current", 0, 1)
    assert "field fare of column BASE is no decimal" in status.unfit_last


def test_a_page_with_large_cells_ends_early_and_its_cursor_continues(datastore: Datastore) -> None:
    with index_worker(datastore):
        version = made_index(datastore, SMALL)
        text = "x" * 1_000_000
        datastore.put_cells(
            [
                (UUID(int=row), "BASE", 1, {"driver": "ann", "fare": "1", "text": text})
                for row in range(40)
            ]
        )
        caught_up(datastore, version)
        sizes: list[int] = []
        found: list[int] = []
        cursor: str | None = None
        while not sizes or cursor is not None:
            page = datastore.query_index(
                "by_driver", "ann", columns=["BASE"], limit=100, cursor=cursor
            )
            cursor = page.cursor
            sizes.append(len(page.rows))
            found += [row.row_key.int for row in page.rows]
        assert (sizes, found) == ([17, 17, 6], list(range(40)))
        assert (
            len(datastore.query_index("by_driver", "ann", limit=100).rows) == 40
        )  # fields alone have no bodies


def test_a_fresh_query_shows_no_entry_that_its_row_has_left(datastore: Datastore) -> None:
    with index_worker(datastore):
        version = made_index(datastore, SMALL)
        for row in range(4):
            put_trip(datastore, row, 1, "ann")
        caught_up(datastore, version)
    put_trip(datastore, 1, 2, "bob")  # nobody keeps the index
    put_trip(datastore, 2, 2, "ann", "7")
    assert [
        row.row_key.int for row in datastore.query_index("by_driver", "ann", mode="fast").rows
    ] == [0, 1, 2, 3]
    fresh = datastore.query_index("by_driver", "ann", [("fare", "=", 1)], limit=2)
    assert [row.row_key.int for row in fresh.rows] == [0, 3]
    assert fresh.cursor is None
    assert [row.fields["fare"] for row in datastore.query_index("by_driver", "ann").rows] == [
        "1",
        "7",
        "1",
    ]


def test_a_new_version_is_built_beside_the_old_one_and_takes_its_place(
    datastore: Datastore,
) -> None:
    with index_worker(datastore) as coordinator:
        made_index(datastore, SMALL)
        put_trip(datastore, 1, 1, "ann")
        changed = IndexDefinition(
            SMALL.table, SMALL.datastore, parse_definition(_with_field("note")).column_defs
        )
        record = datastore.indexes.catalog.create(changed)
        assert (record.number, datastore.indexes.catalog.create(changed).number) == (2, 2)
        assert datastore.indexes.catalog.get("by_driver").current is not None
        cursor = None
        built(datastore, "by_driver", 2)
        assert [
            version.state for version in datastore.indexes.catalog.get("by_driver").versions
        ] == ["retired", "current"]
        datastore.indexes._remembered.clear()
        page = datastore.query_index("by_driver", "ann", cursor=cursor)
        assert page.version == 2
        assert [list(row.fields) for row in page.rows] == [["driver", "fare", "note"]]
        assert drop_versions(datastore, coordinator, "by_driver", 1) == [1]
        assert drop_versions(datastore, coordinator, "by_driver") == [2]
        assert coordinator.groups() == []
        datastore.indexes._remembered.clear()
        with pytest.raises(NotFound):
            datastore.query_index("by_driver", "ann")
        assert datastore.indexes.catalog.create(SMALL).number == 3


def _with_field(name: str) -> str:
    fields = "{field: driver, type: string}, {field: fare, type: decimal}"
    return (
        f"table: by_driver\ndatastore: trips\ncolumn_defs: [{{column_name: BASE, fields: [{fields},"
        f" {{field: {name}, type: string}}]}}]"
    )


def test_a_worker_looks_often_only_while_a_version_is_built(tmp_path: Path) -> None:
    with (
        Datastore.open_embedded(tmp_path) as datastore,
        closing(StoreCoordinator(datastore.state)) as coordinator,
    ):
        put_trip(datastore, 1, 1, "ann")
        worker = IndexWorker(datastore, coordinator, "keeper", lease_s=2.0)
        datastore.indexes.catalog.create(SMALL)
        worker.look()
        assert worker.is_building

        def is_built() -> bool:
            worker.look()
            return datastore.indexes.catalog.get("by_driver").current is not None

        wait_until(is_built, "built", 30)
        worker.look()
        still_builds: bool = worker.is_building
        assert not still_builds
        worker.close()
