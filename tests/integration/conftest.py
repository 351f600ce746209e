"""Storage that several of these tests work on: a cluster of real servers; a store with its
coordination in it, or in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.servers.kafka_jars import OLDER_KAFKA_VERSION
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.moves import waiting
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from tests.support.cluster_steps import open_engine
from tests.support.local_kafka import Kafka, started_kafka
from tests.support.local_mariadb import MariaDB
from tests.support.local_zookeeper import ZooKeeper
from tests.support.mariadb_cluster import (
    BUSY_FENCE_MAX_S,
    DATASTORE,
    SHARDS,
    TestCluster,
    make_cluster,
    three_servers,
)
from tests.support.server_source import ServerSource


@pytest.fixture(scope="module")
def servers() -> Iterator[list[MariaDB]]:
    """Three bare servers, for the tests of one module. Skips, with the reason, where none can be
    had."""
    with three_servers() as started:
        yield started


@pytest.fixture
def cluster(servers: list[MariaDB]) -> Iterator[TestCluster]:
    """The servers, made a cluster; bare again afterwards."""
    made = make_cluster("c1", servers)
    yield made
    made.admin.close()
    made.bare()


@pytest.fixture
def engine(cluster: TestCluster) -> Iterator[ClusteredEngine]:
    """The cluster as a program opens it."""
    opened = open_engine(cluster)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def kafka(servers_from: ServerSource) -> Iterator[Kafka]:
    """One broker for the tests of this process that only need some broker: each has topics, groups
    and transactional ids of its own. Skips, with the reason, where none can be had."""
    with servers_from.kafka() as broker:
        yield broker


@pytest.fixture(scope="module")
def older_kafka() -> Iterator[Kafka]:
    """The same of the major version before."""
    with started_kafka(OLDER_KAFKA_VERSION) as broker:
        yield broker


@pytest.fixture(
    params=["store", pytest.param("zookeeper", marks=pytest.mark.xdist_group("zookeeper"))]
)
def coordination(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a trigger is coordinated, as its configuration says it: each test once in the store and
    once in a chroot of its own."""
    if request.param == "store":
        return "store"
    server: ZooKeeper = request.getfixturevalue("zookeeper_server")
    return f"{server.url}/{tmp_path.name}?timeout_s=5"


@pytest.fixture
def coordinator(coordination: str, store: Datastore) -> Iterator[Coordinator]:
    """The test's own eyes on the coordination of ``store``."""
    with closing(open_coordinator(coordination, store.state)) as opened:
        yield opened


@pytest.fixture
def clusters(
    servers: list[MariaDB], monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, TestCluster]]:
    """Two clusters of the three servers: c1 has a master and a minion, c2 one node; bare again
    afterwards."""
    monkeypatch.setattr(waiting, "FENCE_MAX_S", BUSY_FENCE_MAX_S)
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    made = {
        "c1": make_cluster("c1", servers[:2], divided),
        "c2": make_cluster("c2", servers[2:], divided),
    }
    yield made
    for each in made.values():
        each.admin.close()
        each.bare()
