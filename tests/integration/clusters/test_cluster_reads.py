"""Reads of cells by their keys from a real cluster, in process and over HTTP: from the master, or
from a minion that a request asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID, uuid5

import pytest

from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import Cell
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.http.client import Client
from tests.support.http_calls import call
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster
from tests.support.waiting import wait_until
from tests.support.worker_thread import worker_thread

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

NAMESPACE = UUID("31d7c8a2-7a9d-4a0c-b1d1-4c3b7b1c0a01")
COLUMN = "BASE"
CALL_TIMEOUT_S = 8.0
"""Of a client: one test waits for it to pass."""


@pytest.fixture
def datastore(cluster: TestCluster) -> Iterator[Datastore]:
    with Datastore(ClusteredEngine(DATASTORE, SHARDS, {cluster.name: cluster.openers()})) as opened:
        yield opened


@pytest.fixture(params=["in process", "over HTTP"])
def store(request: pytest.FixtureRequest, datastore: Datastore) -> Iterator[CellStore]:
    if request.param == "in process":
        yield datastore
        return
    with (
        worker_thread(datastore) as url,
        Client(url, DATASTORE, timeout_s=CALL_TIMEOUT_S) as client,
    ):
        yield client


def row(number: int) -> UUID:
    return uuid5(NAMESPACE, str(number))


def put(datastore: Datastore, ref_key: int, numbers: range = range(10)) -> None:
    assert all(
        result.acknowledged
        for result in datastore.put_cells(
            [(row(n), COLUMN, ref_key, {"at": ref_key}) for n in numbers]
        )
    )


def replicated(datastore: Datastore, cells: int) -> None:
    wait_until(
        lambda: sum(head.watermark for head in datastore.heads().values()) == cells,
        "a minion has all of it",
    )


def versions(cells: list[Cell | None]) -> list[tuple[int, bool] | None]:
    return [(cell.ref_key, cell.stale) if cell else None for cell in cells]


def held_back(cluster: TestCluster) -> None:
    """From now on the minions receive (so commits continue) but apply nothing."""
    for name in "bc":
        cluster.servers[name].sql("STOP SLAVE SQL_THREAD")


def test_a_minion_answers_as_stale_and_the_master_with_the_newest_cell(
    cluster: TestCluster, datastore: Datastore, store: CellStore
) -> None:
    put(datastore, 1)
    replicated(datastore, 10)
    caught_up(cluster, 10)
    held_back(cluster)
    put(datastore, 2)
    keys = [(row(n), COLUMN) for n in range(10)]
    assert versions(store.get_cells_latest(keys)) == [(2, False)] * 10
    assert versions(store.get_cells_latest(keys, read_from="minion")) == [(1, True)] * 10
    assert versions([store.get_cell_latest(*keys[0], read_from="minion")]) == [(1, True)]
    assert versions(list(store.get_row(row(3), read_from="minion").values())) == [(1, True)]
    assert [
        versions(list(found.values()))
        for found in store.get_rows([row(4), row(5)], read_from="minion")
    ] == [[(1, True)], [(1, True)]]
    assert versions([store.get_cell(row(6), COLUMN, 1, read_from="minion")]) == [(1, True)]


def test_a_cell_that_no_minion_has_is_asked_of_the_master(
    cluster: TestCluster, datastore: Datastore, store: CellStore
) -> None:
    held_back(cluster)
    put(datastore, 1)
    assert versions([store.get_cell(row(0), COLUMN, 1, read_from="minion")]) == [(1, False)]
    assert versions(
        store.get_cells_latest([(row(1), COLUMN), (row(99), COLUMN)], read_from="minion")
    ) == [(1, False), None]
    assert store.get_row(row(99), read_from="minion") == {}
    cluster.servers["a"].kill()
    with pytest.raises(StorageUnavailable, match="absence is not known"):
        store.get_cell(row(0), COLUMN, 1, read_from="minion")


def test_reads_from_minions_go_to_both_and_none_to_the_master(
    cluster: TestCluster, datastore: Datastore
) -> None:
    put(datastore, 1)
    caught_up(cluster, 10)
    before = {name: selects(server) for name, server in cluster.servers.items()}

    def both_are_asked() -> bool:
        for _ in range(25):
            assert all(
                cell and cell.stale
                for cell in datastore.get_cells(
                    [(row(n), COLUMN, 1) for n in range(10)], read_from="minion"
                )
            )
        asked = {name: selects(server) - before[name] for name, server in cluster.servers.items()}
        # Each read is a statement per shard; the watchers' few of all nodes are in all three
        # counts.
        return min(asked["b"], asked["c"]) - asked["a"] > 50

    # On a busy machine one that was slow to answer once is left alone for a while.
    wait_until(both_are_asked, "both minions are asked, the master is not")


def test_a_read_over_http_names_its_source_in_query_or_body(
    cluster: TestCluster, datastore: Datastore
) -> None:
    put(datastore, 1)
    caught_up(cluster, 10)
    with worker_thread(datastore) as url:
        port = int(url.rpartition(":")[2])
        for query, stale in (
            ("", False),
            ("&read_from=master", False),
            ("&read_from=minion", True),
        ):
            status, _, content = call(
                port, "GET", f"/v1/{DATASTORE}/latest?row_key={row(1)}&column_name={COLUMN}{query}"
            )
            assert (status, json.loads(content).get("stale", False)) == (200, stale)
        body = json.dumps({"row_keys": [str(row(1))], "read_from": "minion"}).encode()
        status, _, content = call(port, "POST", f"/v1/{DATASTORE}/rows", body)
        assert json.loads(content)["rows"][0]["cells"][COLUMN]["stale"] is True
        status, _, content = call(
            port, "GET", f"/v1/{DATASTORE}/row?row_key={row(1)}&read_from=anywhere"
        )
        assert (status, json.loads(content)["error"]) == (400, "invalid_request")


def caught_up(cluster: TestCluster, cells: int) -> None:
    """Both minions have so many cells."""

    def done() -> bool:
        return all(
            cluster.servers[name].sql(
                f"SELECT SUM(next_added_id) FROM {DATASTORE}_meta.shard_counter"
            )
            == [(cells,)]
            for name in "bc"
        )

    wait_until(done, "both minions have all of it")


def selects(server: MariaDB) -> int:
    [(_, count)] = server.sql("SHOW GLOBAL STATUS LIKE 'Com_select'")
    return int(str(count))
