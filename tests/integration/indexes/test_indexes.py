"""Indexes over the taxi trips: queries in the article's shape beside DuckDB over the same file, in
process and over HTTP; versions, damage, repair."""

from __future__ import annotations

import csv
import random
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import duckdb
import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.bridge.indexes.status import drop_versions, version_status
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.loading.taxi import load_taxi, shipped_csv, trip_row_key
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.indexes import Entry
from cellfeed.store.errors import InvalidLocation, InvalidRequest, NotFound, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from cellfeed.store.http.client import Client
from cellfeed.store.http.server.direct import DirectRequests
from cellfeed.store.indexes.check import IndexCheck
from cellfeed.store.indexes.definition import IndexDefinition
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.version import IndexVersion
from tests.support.http_calls import call
from tests.support.kept_index import built, caught_up, index_worker, made_index
from tests.support.waiting import wait_until
from tests.support.worker_thread import worker_thread

TAXI = parse_definition("""
table: by_zone
datastore: trips
column_defs:
  - column_name: BASE
    fields:
      - {field: pickup_zone, type: string}
      - {field: payment, type: string}
      - {field: pickup, type: datetime}
      - {field: total_cents, type: int}
      - {field: distance_miles, type: float}
  - column_name: FARE_ADJUSTMENT
    fields: [{field: amount_cents, type: int}]
""")
SMALL = parse_definition("""
table: by_driver
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: driver, type: string}, {field: fare, type: decimal}]
""")


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Datastore, str]]:
    """The taxi trips with an index that a worker keeps, and an HTTP worker's address."""
    with Datastore.open_embedded(tmp_path_factory.mktemp("store")) as datastore:
        load_taxi(datastore)
        with index_worker(datastore), worker_thread(datastore) as url:
            made_index(datastore, TAXI)
            yield datastore, url


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same file in DuckDB; ``key`` is the trip's row key."""
    keyed = tmp_path_factory.mktemp("trips") / "keyed.csv"
    with shipped_csv().open(newline="") as source, keyed.open("w", newline="") as target:
        rows = [{**fields, "key": str(trip_row_key(fields))} for fields in csv.DictReader(source)]
        writer = csv.DictWriter(target, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE trip AS SELECT * REPLACE (coalesce(payment, '') AS payment), CAST(pickup AS"
        " TIMESTAMP) AS picked_at, CAST(round(CAST(total AS DECIMAL(9, 2)) * 100) AS INTEGER) AS"
        f" cents, CAST(distance AS DOUBLE) AS miles FROM read_csv('{keyed}', all_varchar = true)"
    )
    yield connection
    connection.close()


QUERIES: list[tuple[list[tuple[str, str, Any]], str, str | None, str]] = [
    ([], "true", None, "key"),
    (
        [("pickup", ">=", "2019-03-10T00:00:00"), ("pickup", "<", "2019-03-17T00:00:00")],
        "picked_at >= '2019-03-10' AND picked_at < '2019-03-17'",
        "pickup",
        "picked_at, key",
    ),
    (
        [("payment", "=", "cash"), ("total_cents", ">", 1500)],
        "payment = 'cash' AND cents > 1500",
        "total_cents",
        "cents, key",
    ),
    (
        [("payment", "!=", "cash"), ("distance_miles", "<=", 1.5)],
        "payment <> 'cash' AND miles <= 1.5",
        "distance_miles",
        "miles, key",
    ),
    (
        [("payment", "in", ["cash", "credit card"])],
        "payment IN ('cash', 'credit card')",
        "payment",
        "payment, key",
    ),
    (
        [("amount_cents", ">", 500)],
        "CAST(tolls AS DOUBLE) > 5",
        "amount_cents",
        "CAST(tolls AS DOUBLE), key",
    ),
]
ZONES = [["Midtown Center"], ["Upper East Side North", "JFK Airport", "Midtown Center", "nowhere"]]


@pytest.mark.parametrize("zones", ZONES, ids=["one shard value", "several"])
@pytest.mark.parametrize(
    ("where", "sql", "order_by", "sql_order"), QUERIES, ids=[each[1] for each in QUERIES]
)
def test_queries_find_what_duckdb_finds(
    trips: tuple[Datastore, str],
    table: duckdb.DuckDBPyConnection,
    zones: list[str],
    where: list[tuple[str, str, Any]],
    sql: str,
    order_by: str | None,
    sql_order: str,
) -> None:
    datastore, url = trips
    listed = ", ".join(f"'{zone}'" for zone in zones)
    selected = f"SELECT key FROM trip WHERE pickup_zone IN ({listed}) AND {sql} ORDER BY"
    for descending in (False, True):
        order = (
            ", ".join(f"{part} DESC" for part in sql_order.split(", ")) if descending else sql_order
        )
        expected = [key for (key,) in table.execute(f"{selected} {order}").fetchall()]
        assert expected or zones == ZONES[0]
        with Client(url, "trips") as client:
            for mode, limit in (("fresh", 37), ("fast", 1000)):
                for store in (datastore, client):
                    assert (
                        _all_rows(
                            store,
                            zones,
                            where,
                            order_by=order_by,
                            descending=descending,
                            mode=mode,
                            limit=limit,
                        )
                        == expected
                    )


def _all_rows(
    store: Datastore | Client, zones: list[str], where: list[tuple[str, str, Any]], **how: Any
) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = store.query_index("by_zone", zones, where, cursor=cursor, **how)
        found += [str(row.row_key) for row in page.rows]
        assert len(page.rows) <= how["limit"]
        if (cursor := page.cursor) is None:
            return found


def test_fields_and_columns_come_as_asked_for(trips: tuple[Datastore, str]) -> None:
    datastore, url = trips
    with Client(url, "trips") as client:
        for store in (datastore, client):
            [row] = store.query_index(
                "by_zone",
                "JFK Airport",
                limit=1,
                fields=["total_cents", "pickup"],
                columns=["BASE"],
            ).rows
            assert list(row.fields) == ["total_cents", "pickup"]
            assert row.cells["BASE"].body["total_cents"] == row.fields["total_cents"]
            assert row.cells["BASE"].row_key == row.row_key
            rows = store.query_index(
                "by_zone", "JFK Airport", [("amount_cents", ">", 0)], columns="*", limit=5
            ).rows
            assert rows
            assert all({"BASE", "FARE_ADJUSTMENT"} <= set(row.cells) for row in rows)
        assert (
            client.query_index("by_zone", ["JFK Airport"]).rows
            == datastore.query_index("by_zone", "JFK Airport").rows
        )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("by_zone", 5), "is not a value of type string"),
        (("by_zone", []), "0 values of the shard field"),
        (("by_zone", "a", [("zone", "=", "b")]), "has no field 'zone'"),
        (("by_zone", "a", [("payment", "like", "b")]), "operator 'like' is not known"),
        (("by_zone", "a", [("pickup", "<", "soon")]), "is not a value of type datetime"),
        (("by_zone", "a", [("payment", "in", "b")]), "takes a list"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(
    trips: tuple[Datastore, str], arguments: Any, told: str
) -> None:
    with Client(trips[1], "trips") as client:
        for store in (trips[0], client):
            with pytest.raises(InvalidRequest, match=told):
                store.query_index(*arguments)


@pytest.mark.parametrize(
    ("index", "query", "direct"),
    [
        ("by_zone", b'{"shard_value": "Midtown East", "limit": 3, "order_by": "pickup"}', True),
        ("by_zone", b'{"shard_value": "Midtown East", "mode": "fast", "columns": "*"}', True),
        ("by_zone", b'{"shard_value": "Midtown East", "where": [["none", "=", 1]]}', True),
        ("by_none", b'{"shard_value": "Midtown East"}', True),
        ("by_zone", b'{"shard_value": "Midtown East", "wait_for": [[0, 1]]}', False),
        ("by_zone", b'{"shard_value": "Midtown East", "shard_value": "Soho"}', False),
        ("by_zone", b'{"shard_value": "Midtown East", "limit": "3"}', False),
        ("by_zone", b"{", False),
    ],
)
def test_a_query_that_is_answered_directly_is_answered_as_any_other(
    trips: tuple[Datastore, str],
    monkeypatch: pytest.MonkeyPatch,
    index: str,
    query: bytes,
    direct: bool,
) -> None:
    port = int(trips[1].rpartition(":")[2])
    path = f"/v1/trips/indexes/{index}/query"
    usual = call(port, "POST", path, query, x_any="thing")
    request = (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (path.encode(), len(query), query)
    )
    taken: list[bool] = []
    take = DirectRequests.take

    def noted(self: DirectRequests, *args: Any) -> bool:
        taken.append(take(self, *args))
        return taken[-1]

    monkeypatch.setattr(DirectRequests, "take", noted)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(request)  # in one piece
        answer = HTTPResponse(peer)
        answer.begin()
        assert (answer.status, answer.headers["content-type"], answer.read()) == usual
    assert taken == [direct]


def test_an_index_that_is_not_there_is_told_with_those_that_are(
    trips: tuple[Datastore, str],
) -> None:
    with Client(trips[1], "trips") as client:
        for store in (trips[0], client):
            with pytest.raises(NotFound, match="no index 'by_zones'; it has by_zone"):
                store.query_index("by_zones", "a")


def test_a_cursor_goes_with_its_query_alone(trips: tuple[Datastore, str]) -> None:
    store = trips[0]
    cursor = store.query_index("by_zone", "JFK Airport", limit=3).cursor
    for how, told in (
        ({"order_by": "pickup"}, "another query"),
        ({"cursor": "%%%"}, "not one of this service's"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            store.query_index("by_zone", "JFK Airport", **{"cursor": cursor, **how})  # type: ignore[arg-type]


def test_a_caller_reads_its_own_writes(trips: tuple[Datastore, str]) -> None:
    datastore, url = trips
    with Client(url, "trips") as client:
        stores: list[Datastore | Client] = [datastore, client] * 5
        for number, store in enumerate(stores):
            put = store.put_cell(
                uuid4(), "BASE", 1, {"pickup_zone": "own writes", "payment": "cash"}
            )
            page = store.query_index("by_zone", "own writes", wait_for=(put.shard, put.added_id))
            assert len(page.rows) == number + 1
    with Client(url, "trips", timeout_s=1) as client:
        with pytest.raises(StorageUnavailable, match=r"not past .* within 0\.01 s"):
            client.query_index("by_zone", "own writes", wait_for=(0, 1_000_000), wait_s=0.01)
        with pytest.raises(InvalidLocation):
            client.query_index("by_zone", "own writes", wait_for=(99, 1))


# --- versions, damage, repair ---------------------------------------------------------------------


def put_trip(
    datastore: Datastore, row: int, ref_key: int, driver: object, fare: object = "1"
) -> None:
    datastore.put_cell(UUID(int=row), "BASE", ref_key, {"driver": driver, "fare": fare})


def drivers(datastore: Datastore, version: IndexVersion) -> list[tuple[str, int]]:
    caught_up(datastore, version)
    found = datastore.query_index("by_driver", ["ann", "bob"], mode="fast", order_by="driver").rows
    return [(str(row.fields["driver"]), row.row_key.int) for row in found]


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


def test_a_page_with_large_cells_ends_early_and_its_cursor_goes_on(datastore: Datastore) -> None:
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


def test_every_planted_damage_is_found_and_mended_and_nothing_else(datastore: Datastore) -> None:
    with index_worker(datastore) as coordinator:
        version = made_index(datastore, SMALL)
        chosen = random.Random(7)
        for row in range(200):
            put_trip(datastore, row, 1, chosen.choice(["ann", "bob"]), str(row))
        for row in range(0, 200, 5):
            put_trip(datastore, row, 2, chosen.choice(["ann", "bob"]), str(row))
        caught_up(datastore, version)
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
        assert list(check.run()) == []
        assert (check.report.cells, check.report.entries) == (240, 200)
        planted = plant(datastore, version)
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
        found = list(check.run())
        assert sorted((each.kind, UUID(bytes=each.row_key).int) for each in found) == sorted(
            planted
        )
        for difference in found:
            # A kill in the middle of a repair costs nothing: the next one finds the rest.
            set_failpoint("index.repair.between", "raise")
            with suppress(FailpointReached):
                check.repair(difference)
            clear_failpoints()
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
        for difference in check.run():
            check.repair(difference)
        assert (
            list(IndexCheck(datastore.engine, version, index_positions(coordinator, "trips")).run())
            == []
        )


def test_a_repair_keeps_the_entry_of_a_late_writer_from_coming_back(datastore: Datastore) -> None:
    with index_worker(datastore) as coordinator:
        version = made_index(datastore, SMALL)
        put_trip(datastore, 1, 1, "ann")
        caught_up(datastore, version)
        store, place = (
            datastore.engine.indexes,
            (version.shard_of_value(b"ann"), b"ann", UUID(int=1).bytes),
        )
        [late] = store.find(version.table, [place])
        assert late is not None
        put_trip(datastore, 1, 2, "bob")
        caught_up(datastore, version)
        [tombstone] = store.find(version.table, [place])
        assert tombstone is not None
        store.remove(version.table, version.by_shard([tombstone]))
        store.apply(version.table, version.by_shard([late]))
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
        [difference] = check.run()
        assert difference.kind == "stale"
        check.repair(difference)
        assert store.find(version.table, [place]) == [tombstone]
        store.apply(version.table, version.by_shard([late]))
        assert (
            list(IndexCheck(datastore.engine, version, index_positions(coordinator, "trips")).run())
            == []
        )


def plant(datastore: Datastore, version: IndexVersion) -> list[tuple[str, int]]:
    """Damage of each kind, and the kinds that a check must report."""
    store = datastore.engine.indexes
    entries = {
        UUID(bytes=entry.row_key).int: entry
        for shard in range(datastore.shards)
        for entry in store.walk(version.table, shard, None, 1000)
        if entry.live
    }

    def remove(entry: Entry) -> None:
        store.remove(version.table, version.by_shard([entry]))

    def put(entry: Entry) -> None:
        store.apply(version.table, version.by_shard([entry]))

    remove(entries[1])
    put(entries[2]._replace(refs=(99,), values=(entries[2].values[0], None)))
    put(entries[3]._replace(refs=(99,), live=False))
    here = entries[4].values[0]
    put(entries[4]._replace(refs=(99,), values=(b"ann" if here == b"bob" else b"bob", None)))
    put(entries[5]._replace(row_key=UUID(int=5000).bytes))
    remove(entries[6])
    put(entries[6]._replace(refs=(0,)))
    return [
        ("missing", 1),
        ("stale", 2),
        ("missing", 3),
        ("invented", 4),
        ("invented", 5000),
        ("stale", 6),
    ]


def test_a_check_beside_live_writes_tells_no_false_differences(
    datastore: Datastore, tmp_path: Path
) -> None:
    with index_worker(datastore) as coordinator:
        version = made_index(datastore, SMALL)
        for row in range(100):
            put_trip(datastore, row, 0, "ann")
        check, number = (
            IndexCheck(datastore.engine, version, index_positions(coordinator, "trips")),
            0,
        )

        def write(_: int) -> None:
            nonlocal number
            for row in range(0, 100, 3):
                number += 1
                put_trip(datastore, row, number, "ann" if number % 2 else "bob")

        assert list(check.run(write)) == []
        assert number > 100


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
