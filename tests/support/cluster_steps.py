"""Steps that many tests of clusters take: cells are put until they are stored, nodes compared,
replication ended, a supervisor run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from uuid import UUID, uuid5

import pymysql

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.engines.mysql import operation_locks
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import StorageUnavailable, Unavailable
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, make_cluster

NAMESPACE = UUID("5d1c3e0e-55a4-4b5e-9a55-7b7d2f1f0a01")
SETTLE_S = 60.0
"""Above the longest wait of a put for a server that hangs, 15 s, several times."""


def open_engine(
    cluster: TestCluster, watermark: Watermark = Watermark.REPLICATED
) -> ClusteredEngine:
    return ClusteredEngine(
        DATASTORE, SHARDS, {cluster.name: cluster.openers()}, watermark=watermark
    )


@contextmanager
def two_buffering_clusters(servers: Sequence[MariaDB]) -> Iterator[ClusteredEngine]:
    """Two clusters of one server each, ``c1`` and ``c2``: a put to one leaves a copy in the buffer
    of the other. The servers are bare again afterwards."""
    names = ["c1", "c2"]
    divided = even_map(DATASTORE, SHARDS, names)
    made = [
        make_cluster(name, [server], divided) for name, server in zip(names, servers, strict=False)
    ]
    openers = {each.name: each.openers() for each in made}
    try:
        with closing(ClusteredEngine(DATASTORE, SHARDS, openers, copies=1)) as engine:
            yield engine
    finally:
        for each in made:
            each.admin.close()
            each.bare()


def cells(numbers: range) -> list[NewCell]:
    return [new_cell(uuid5(NAMESPACE, str(n)), "BASE", 1, {"n": n}) for n in numbers]


def eventually(done: Callable[[], bool], what: str, timeout_s: float = SETTLE_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        # A server that is fenced, made a minion, or just comes up cuts its clients off.
        with suppress(pymysql.err.OperationalError, StorageUnavailable):
            if done():
                return
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def checksums(cluster: TestCluster, node: str) -> list[object]:
    tables = [f"trips_{shard:04d}.cell" for shard in range(SHARDS)] + [
        "trips_meta.shard_counter",
        "trips_meta.leader_epoch",
        "trips_meta.state_entry",
    ]
    return [
        checksum for _, checksum in cluster.servers[node].sql(f"CHECKSUM TABLE {', '.join(tables)}")
    ]


def shown(engine: ClusteredEngine) -> int:
    return sum(head.watermark for head in engine.heads().values())


def put_until_stored(engine: ClusteredEngine, wanted: list[NewCell]) -> None:
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        try:
            results = engine.put(wanted)
        except Unavailable:
            assert time.monotonic() < deadline_s, "no writes in time"
            time.sleep(0.05)
        else:
            assert {result.outcome for result in results} <= {Outcome.STORED, Outcome.EXISTS}
            return


def without_replication(cluster: TestCluster, *minions: str) -> None:
    for name in minions:
        cluster.servers[name].sql("STOP SLAVE IO_THREAD")


@contextmanager
def applying_nothing(cluster: TestCluster, minion: str) -> Iterator[None]:
    """The minion receives and acknowledges its master's events, and can apply no cell: a reader
    holds the rows of its counters, and no promotion ends that reader's connection."""
    server = MySqlServer(cluster.servers[minion].url)
    with closing(server), server.connection() as reader:
        spared = (server.address, int(reader.thread_id()))  # type: ignore[no-untyped-call]
        operation_locks.LOCKING.add(spared)
        try:
            query(reader, "BEGIN")
            query(reader, f"SELECT * FROM {DATASTORE}_meta.shard_counter FOR UPDATE")
            yield
            query(reader, "ROLLBACK")
        finally:
            operation_locks.LOCKING.discard(spared)


def renew_a_lease(cluster: TestCluster, node: str) -> None:
    """A state entry, no cell, from outside of cellfeed: by an account that may write to a read-only
    server."""
    cluster.servers[node].sql(
        "UPDATE trips_meta.state_revision SET revision = revision + 1",
        "REPLACE INTO trips_meta.state_entry SELECT 'lease/somebody', 'renewed', revision FROM"
        " trips_meta.state_revision",
    )


@contextmanager
def supervised(cluster: TestCluster) -> Iterator[None]:
    """A supervisor at work."""
    stop, supervisor = threading.Event(), FailoverSupervisor(cluster.admin)
    thread = threading.Thread(target=supervisor.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
