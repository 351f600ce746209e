"""The ``conftest.py`` of the contract suite where only the client is installed: each client at the
worker of :data:`WORKER_URL`. Tests that need the store in process are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cellfeed import Client
from cellfeed.store.api import CellStore
from tests.support.client_in_loop import ClientInLoop

WORKER_URL = "CELLFEED_TEST_WORKER"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(os.environ[WORKER_URL], "trips") as opened:
        yield opened


@pytest.fixture(scope="module")
def client_in_loop() -> Iterator[ClientInLoop]:
    with ClientInLoop(os.environ[WORKER_URL], "trips") as opened:
        yield opened


@pytest.fixture(params=["client", "client_in_loop"])
def store(request: pytest.FixtureRequest) -> CellStore:
    found: CellStore = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def remote() -> None:
    """Only beside ``datastore``."""


@pytest.fixture
def datastore() -> None:
    pytest.skip("the store in process is not installed here")
