"""A managed endpoint, and a datastore on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.assembly.clusters import init_clusters
from tests.support import local_mysql
from tests.support.managed_endpoint import ManagedEndpoint, managed_endpoint


@pytest.fixture
def bare_endpoint(tmp_path: Path) -> Iterator[ManagedEndpoint]:
    if reason := local_mysql.why_not():
        pytest.skip(reason)
    with managed_endpoint(tmp_path) as made:
        yield made


@pytest.fixture
def endpoint(bare_endpoint: ManagedEndpoint) -> ManagedEndpoint:
    list(init_clusters(bare_endpoint.checked(), ["c1"]))
    return bare_endpoint
