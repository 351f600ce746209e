"""A small datastore whose triggers are coordinated in it, or in a ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.store.datastore import Datastore
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.trigger_workers import COORDINATIONS, open_coordination


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    """Of four shards."""
    with Datastore.open_embedded(tmp_path / "store", shards=4) as opened:
        yield opened


@pytest.fixture
def tree() -> ZooKeeperTree:
    return ZooKeeperTree()


@pytest.fixture(params=COORDINATIONS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def coordinator(kind: str, datastore: Datastore, tree: ZooKeeperTree) -> Iterator[Coordinator]:
    with closing(open_coordination(kind, datastore, tree)) as opened:
        yield opened


@pytest.fixture
def other_host(kind: str, datastore: Datastore, tree: ZooKeeperTree) -> Iterator[Coordinator]:
    """The coordinator of another host, over the same coordination."""
    with closing(open_coordination(kind, datastore, tree)) as opened:
        yield opened
