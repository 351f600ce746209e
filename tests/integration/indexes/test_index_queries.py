"""Queries of an index over the taxi trips, in the article's shape, beside DuckDB over the same
file."""

from __future__ import annotations

import csv
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any
from uuid import uuid4

import duckdb
import pytest

from cellfeed.loading.taxi import load_taxi, shipped_csv, trip_row_key
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidLocation, InvalidRequest, NotFound, StorageUnavailable
from cellfeed.store.http.client import Client
from cellfeed.store.http.server.direct import DirectRequests
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.http_calls import call
from tests.support.kept_index import index_worker, made_index
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
def test_queries_find_the_same_rows_as_duckdb(
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


def test_a_query_gives_the_fields_and_columns_in_the_order_asked_for(
    trips: tuple[Datastore, str],
) -> None:
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
def test_an_impossible_question_is_refused_with_the_reason(
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


def test_an_unknown_index_is_reported_with_the_known_ones(
    trips: tuple[Datastore, str],
) -> None:
    with Client(trips[1], "trips") as client:
        for store in (trips[0], client):
            with pytest.raises(NotFound, match="no index 'by_zones'; it has by_zone"):
                store.query_index("by_zones", "a")


def test_a_cursor_is_valid_only_for_its_query(trips: tuple[Datastore, str]) -> None:
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
