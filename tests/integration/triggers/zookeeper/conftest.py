"""A coordinator in a chroot of its own, and an ordinary client of the same ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import parse_zookeeper_url
from cellfeed.store.datastore import Datastore
from tests.support.local_zookeeper import ZooKeeper


@pytest.fixture
def chroot() -> str:
    return f"/here-{uuid4()}"


@pytest.fixture
def coordinator(
    zookeeper_server: ZooKeeper, datastore: Datastore, chroot: str
) -> Iterator[ZooKeeperCoordinator]:
    with closing(
        ZooKeeperCoordinator(
            parse_zookeeper_url(f"{zookeeper_server.url}{chroot}"), datastore.state
        )
    ) as opened:
        yield opened


@pytest.fixture
def by_hand(zookeeper_server: ZooKeeper) -> Iterator[KazooClient]:
    """An ordinary client, as zkCli is."""
    client = KazooClient(zookeeper_server.hosts)
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()
