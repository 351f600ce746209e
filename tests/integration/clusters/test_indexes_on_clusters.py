"""Indexes over real MariaDB: a cluster whose master is killed and paused under writes, and two
clusters; afterwards the two-way check finds nothing (I18). Queries of two clusters while one
stalls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.fan_out import FAN_OUT_THREADS
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StaleWriter, StorageUnavailable, Unavailable
from cellfeed.store.indexes.check import IndexCheck
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.request import IndexRow
from tests.support.cluster_steps import open_engine
from tests.support.kept_index import caught_up, index_worker, made_index
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, make_cluster, node_opener
from tests.support.tcp_proxy import Action, TcpProxy
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

NAMESPACE = UUID("5d1c3e0e-55a4-4b5e-9a55-7b7d2f1f0a02")
DEFINITION = parse_definition(
    """
table: by_driver
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: driver, type: string}, {field: n, type: int}]
  - column_name: STATUS
    fields: [{field: done, type: bool}]
"""
)


@contextmanager
def writing(datastore: Datastore) -> Iterator[list[int]]:
    """Cells without end; some move their row to another driver; the yielded list counts them. A put
    that fails is done again."""
    stop, written = threading.Event(), [0]

    def write() -> None:
        number = 0
        while not stop.is_set():
            row = uuid5(NAMESPACE, str(number % 60))
            cells: list[tuple[UUID, str, int, dict[str, Any]]] = [
                (row, "BASE", number, {"driver": f"driver {number % 7}", "n": number}),
                (row, "STATUS", number, {"done": number % 2 == 0}),
            ]
            try:
                if all(result.acknowledged for result in datastore.put_cells(cells)):
                    number += 1
                    written[0] += 2
            except (Unavailable, StaleWriter):
                stop.wait(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_an_index_equals_the_cells_after_a_failover_under_writes(
    cluster: TestCluster, how: str
) -> None:
    engine = ClusteredEngine(
        DATASTORE, SHARDS, {cluster.name: cluster.openers()}, watermark=Watermark.REPLICATED
    )
    ended, promoted = threading.Event(), list[Promotion]()
    supervisor = threading.Thread(
        target=FailoverSupervisor(cluster.admin, promoted.append).run, args=(ended,)
    )
    with Datastore(engine) as datastore, index_worker(datastore) as coordinator:
        supervisor.start()
        try:
            version = made_index(datastore, DEFINITION)
            with writing(datastore) as written:
                wait_until(lambda: written[0] > 200, "cells are written", 60)
                getattr(cluster.servers["a"], how)()
                wait_until(lambda: bool(promoted), "another master", 60)
                before = written[0]
                wait_until(
                    lambda: written[0] > before + 200, "cells are written after the failover", 60
                )
                if how == "pause":
                    cluster.servers["a"].resume()
                    time.sleep(0.5)
            caught_up(datastore, version)
            check = IndexCheck(datastore.engine, version, index_positions(coordinator, DATASTORE))
            assert list(check.run()) == []
            assert check.report.entries == 60
            rows = datastore.query_index(
                "by_driver", [f"driver {number}" for number in range(7)], order_by="n", limit=1000
            ).rows
            assert len(rows) == 60
            drivers = [f"driver {number}" for number in range(7)]
            on_minion = partial(
                datastore.query_index,
                "by_driver",
                drivers,
                mode="fast",
                read_from="minion",
                limit=1000,
            )
            wait_until(lambda: len(on_minion().rows) == 60, "a minion has them as well")
        finally:
            ended.set()
            supervisor.join()


def test_a_query_answered_by_a_minion_alone_is_stale(cluster: TestCluster) -> None:
    """The index has come past the cell, on its master; the minions have received that, and have not
    applied it."""
    with Datastore(open_engine(cluster)) as datastore, index_worker(datastore):
        version = made_index(datastore, DEFINITION)
        datastore.put_cell(uuid5(NAMESPACE, "first"), "BASE", 1, {"driver": "x", "n": 1})
        caught_up(datastore, version)
        assert not datastore.query_index("by_driver", "x", [("n", "=", 1)]).stale
        wait_until(
            lambda: bool(
                datastore.query_index("by_driver", "x", mode="fast", read_from="minion").rows
            ),
            "a minion has it as well",
        )
        assert datastore.query_index("by_driver", "x", mode="fast", read_from="minion").stale
        for name in ("b", "c"):
            cluster.servers[name].sql("STOP SLAVE SQL_THREAD")
        [(shard, entry)] = [
            (shard, entry)
            for shard in range(SHARDS)
            for entry in datastore.engine.indexes.walk(version.table, shard, None, 10)
        ]
        another = entry._replace(
            row_key=uuid5(NAMESPACE, "second").bytes, values=(entry.values[0], 2, *entry.values[2:])
        )
        datastore.engine.indexes.apply(version.table, {shard: [another]})
        assert len(datastore.query_index("by_driver", "x", mode="fast").rows) == 2
        cluster.servers["a"].kill()

        def asked() -> bool:
            with suppress(StorageUnavailable):
                page = datastore.query_index("by_driver", "x", [("n", "=", 2)], mode="fast")
                assert page.stale, "a row is missing, and nothing says so"
                return True
            return False

        wait_until(asked, "a minion answers", 60)


def test_a_query_is_stale_when_a_row_was_read_from_a_minion(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master gives the entries and is killed, and a minion that has the row's cell as well. The
    other minion has not applied it: a fresh query leaves the row out."""
    second = uuid5(NAMESPACE, "second")
    with Datastore(open_engine(cluster)) as datastore, index_worker(datastore):
        version = made_index(datastore, DEFINITION)
        cluster.servers["c"].sql("STOP SLAVE SQL_THREAD")
        put = datastore.put_cell(second, "BASE", 1, {"driver": "x", "n": 2})
        assert put.acknowledged
        shard, added_id = put.shard, put.added_id
        assert shard is not None
        assert added_id is not None
        # An acknowledged cell is shown once a minion has applied it, not only received it.
        wait_until(lambda: datastore.heads()[shard].watermark > added_id, "the cell is shown")
        caught_up(datastore, version)
        current = datastore.engine.indexes.current

        def after_two_died(*arguments: Any) -> Any:
            cluster.servers["a"].kill()
            cluster.servers["b"].kill()
            return current(*arguments)

        query = partial(datastore.query_index, "by_driver", "x", [("n", "=", 2)], columns=["BASE"])
        assert [row.row_key for row in query().rows] == [second]
        monkeypatch.setattr(datastore.engine.indexes, "current", after_two_died)
        page = query()
        assert page.rows == []
        assert page.stale, "a row is missing, and nothing says so"


@pytest.fixture
def clusters(servers: list[MariaDB]) -> Iterator[list[TestCluster]]:
    """Two clusters of a server each, with half of the shards."""
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    made = [
        make_cluster(name, [server], divided, semi_sync=False)
        for name, server in zip(("c1", "c2"), servers, strict=False)
    ]
    yield made
    for each in made:
        each.admin.close()
        each.bare()


def test_entries_lie_on_the_cluster_of_their_shard_value(clusters: list[TestCluster]) -> None:
    engine = ClusteredEngine(
        DATASTORE,
        SHARDS,
        {each.name: each.openers() for each in clusters},
        watermark=Watermark.REPLICATED,
    )
    with Datastore(engine) as datastore, index_worker(datastore) as coordinator:
        version = made_index(datastore, DEFINITION)
        with writing(datastore) as written:
            wait_until(lambda: written[0] > 300, "cells are written", 60)
        caught_up(datastore, version)
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, DATASTORE))
        assert list(check.run()) == []
        table = version.table
        by_shard = [
            sum(entry.live for entry in engine.indexes.walk(table, shard, None, 1000))
            for shard in range(SHARDS)
        ]
        assert sum(by_shard) == 60
        assert any(by_shard[:2])
        assert any(by_shard[2:])


def test_reads_of_many_large_cells_on_two_clusters_are_complete_in_pages(
    clusters: list[TestCluster],
) -> None:
    engine = ClusteredEngine(
        DATASTORE,
        SHARDS,
        {each.name: each.openers() for each in clusters},
        watermark=Watermark.REPLICATED,
    )
    with Datastore(engine) as datastore:
        rows, text = [uuid5(NAMESPACE, str(n)) for n in range(40)], "x" * 1_000_000
        for n, row in enumerate(rows):
            columns = [f"C{number:02}" for number in range(20 if n == 7 else 1)]
            assert all(
                result.acknowledged
                for result in datastore.put_cells(
                    [(row, column, 1, {"n": n, "text": text}) for column in columns]
                )
            )
        page = datastore.get_cells_page([(row, "C00", 1) for row in rows])
        assert 17 <= len(page) < 40
        assert [
            cell and cell.body["n"]
            for cell in datastore.get_cells([(row, "C00", 1) for row in rows])
        ] == list(range(40))
        found = datastore.get_rows(rows)
        assert [[cell.body["n"] for cell in row.values()] for row in found] == [
            [n] * (20 if n == 7 else 1) for n in range(40)
        ]


@pytest.fixture
def proxies(clusters: list[TestCluster]) -> Iterator[list[TcpProxy]]:
    """Before each of the two clusters."""
    with (
        TcpProxy(clusters[0].servers["a"].port, mysql=True) as first,
        TcpProxy(clusters[1].servers["a"].port, mysql=True) as second,
    ):
        yield [first, second]


@pytest.fixture
def filled(clusters: list[TestCluster]) -> Iterator[Datastore]:
    """An index over both clusters, of 60 rows of seven drivers."""
    engine = ClusteredEngine(
        DATASTORE,
        SHARDS,
        {each.name: each.openers() for each in clusters},
        watermark=Watermark.REPLICATED,
    )
    with Datastore(engine) as datastore, index_worker(datastore):
        datastore.put_cells(
            [
                (uuid5(NAMESPACE, str(n)), "BASE", 1, {"driver": f"driver {n % 7}", "n": n})
                for n in range(60)
            ]
        )
        caught_up(datastore, made_index(datastore, DEFINITION))
        yield datastore


def through(proxies: list[TcpProxy], clusters: list[TestCluster]) -> ClusteredEngine:
    """The two clusters behind their proxies."""
    urls = [
        each.servers["a"].url.replace(f":{proxy.target_port}", f":{proxy.port}")
        for each, proxy in zip(clusters, proxies, strict=True)
    ]
    return ClusteredEngine(
        DATASTORE,
        SHARDS,
        {each.name: {"a": node_opener(url)} for each, url in zip(clusters, urls, strict=True)},
    )


DRIVERS = [f"driver {number}" for number in range(7)]


def test_a_query_of_two_clusters_asks_both_before_either_has_answered(
    clusters: list[TestCluster], proxies: list[TcpProxy], filled: Datastore
) -> None:
    with Datastore(through(proxies, clusters)) as datastore, ThreadPoolExecutor(1) as caller:
        table = datastore.indexes.current("by_driver").table.name

        def both_are_asked() -> bool:
            """Answers are held back for so long only: a read that waits for more than its time-out
            is given up."""
            answers = [proxy.on_query(table, Action.HOLD_ANSWER) for proxy in proxies]
            asked = caller.submit(
                datastore.query_index, "by_driver", DRIVERS, order_by="n", limit=1000
            )
            both = all(answer.happened.wait(1) for answer in answers)
            for proxy in proxies:
                proxy.clear()
            with suppress(StorageUnavailable):
                return both and [row.fields["n"] for row in asked.result(60).rows] == list(
                    range(60)
                )
            return False

        wait_until(
            both_are_asked, "the second cluster is asked while the first one's answer is held"
        )
        for mode in ("fresh", "fast"):
            rows: list[IndexRow] = []
            cursor: str | None = None
            while cursor is not None or not rows:
                page = datastore.query_index(
                    "by_driver",
                    DRIVERS,
                    order_by="n",
                    descending=True,
                    limit=7,
                    cursor=cursor,
                    mode=mode,
                    columns="*",
                )
                rows += page.rows
                cursor = page.cursor
            assert [row.fields["n"] for row in rows] == list(range(59, -1, -1))
            assert all(row.cells["BASE"].body["n"] == row.fields["n"] for row in rows)


def test_a_query_of_a_stalled_cluster_reports_that_and_leaves_no_thread_behind(
    clusters: list[TestCluster], proxies: list[TcpProxy], filled: Datastore
) -> None:
    engine = through(proxies, clusters)
    with Datastore(engine) as datastore:
        version = datastore.indexes.current("by_driver")
        first_alone = [
            driver for driver in DRIVERS if version.shard_of_value(driver.encode()) < SHARDS // 2
        ]
        assert 0 < len(first_alone) < len(DRIVERS)
        ask = partial(
            datastore.query_index, "by_driver", DRIVERS, order_by="n", mode="fast", limit=1000
        )
        whole = ask().rows
        connections = proxies[1].open_now
        proxies[1].stall()
        for _ in range(3):
            with pytest.raises(StorageUnavailable, match="cluster c2: no node can be read"):
                ask()
        assert sum(proxies[1].held.values()) > 0
        rows = datastore.query_index(
            "by_driver", first_alone, order_by="n", mode="fast", limit=1000
        ).rows
        assert rows == [row for row in whole if row.fields["driver"] in first_alone]
        proxies[1].resume()

        def is_whole() -> bool:
            with suppress(StorageUnavailable):
                return ask().rows == whole
            return False

        wait_until(is_whole, "the cluster is asked again")
        assert engine._fan_out._free._value == FAN_OUT_THREADS, (
            "no thread is at work for a query that is over"
        )
        wait_until(
            lambda: proxies[1].open_now <= connections,
            "no connection is left of the reads that were given up",
        )
