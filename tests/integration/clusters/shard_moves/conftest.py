"""Two clusters of this folder's servers, as a program opens them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cellfeed.store.clusters.serving.engine import ClusteredEngine
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import TestCluster, three_servers
from tests.support.move_steps import open_engine


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


@pytest.fixture(scope="package")
def servers() -> Iterator[list[MariaDB]]:
    """Three bare servers, for the tests of this folder."""
    with three_servers() as started:
        yield started
