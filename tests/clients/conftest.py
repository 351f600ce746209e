"""A gateway over 4,000 trips, made once for all tests that only read it; and one of its own for
tests that write or kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.drivers import DRIVERS, Driver
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import Received, expected_records, fill


@pytest.fixture(scope="session")
def trips_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trips-store")
    fill(directory)
    return directory


@pytest.fixture(scope="session")
def expected(trips_store: Path) -> dict[str, list[Received]]:
    """Topic to its records, by partition and offset."""
    return expected_records(trips_store)


@pytest.fixture(scope="session")
def gateway(
    trips_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """Shared: to be read, and given groups of unique names."""
    with GatewayProcess(trips_store, tmp_path_factory.mktemp("gateway") / "log") as running:
        yield running


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Over a filled store of the test's own (``tmp_path / "store"``)."""
    fill(tmp_path / "store")
    with GatewayProcess(tmp_path / "store", tmp_path / "gateway.log") as running:
        yield running


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Driver:
    """Each of the Python clients."""
    found: Driver = DRIVERS[request.param]
    return found
