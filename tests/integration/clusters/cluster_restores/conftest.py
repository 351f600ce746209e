"""An embedded datastore with as many shards as the clusters, and three servers for this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, three_servers
from tests.support.rides import rides


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Datastore]:
    """Of as many shards as the clusters of these tests."""
    with Datastore.open_embedded(tmp_path / "source", DATASTORE, SHARDS) as store:
        store.put_new_cells(rides(0, 400))
        # the store's own thread reads it
        address = b'{"host": "127.0.0.1", "port": 9, "expires_at_us": 0}'
        store.state.commit(
            {"offsets/reports/trips/0": b"{}", "groups/reports/leader": b"{}", "wakeups/x": address}
        )
        yield store


@pytest.fixture(scope="package")
def servers() -> Iterator[list[MariaDB]]:
    """Three bare servers, for the tests of this folder."""
    with three_servers() as started:
        yield started
