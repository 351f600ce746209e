"""The grid: other people's Kafka clients, in the languages that they are used from, do the same
things against running gateways.

``make grid`` writes the table of ``docs/kafka-consumers.md``; an ordinary run fails when the table
there differs from its results.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.clients.grid import table
from tests.clients.grid.clients import CLIENTS
from tests.clients.grid.scenarios import SCENARIOS, Grid, why_not
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import Received

# One worker, so that gateways, builds and the death of a gateway are there once. The first test may
# have to build the drivers.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("client grid"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def grid(
    trips_store: Path,
    gateway: GatewayProcess,
    expected: dict[str, list[Received]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Grid:
    return Grid(trips_store, gateway, expected["trips.BASE"], tmp_path_factory.mktemp("grid"))


@pytest.mark.parametrize("scenario", list(SCENARIOS))
@pytest.mark.parametrize("client", list(CLIENTS))
def test_a_client_can_do_it_all(grid: Grid, client: str, scenario: str) -> None:
    if reason := why_not(CLIENTS[client]):
        pytest.skip(f"{client} {reason}")
    assert list(grid.outcome(client, scenario).wrong) == []


def test_the_client_table_in_the_guide_equals_the_measured_one(grid: Grid) -> None:
    missing = {name: reason for name, client in CLIENTS.items() if (reason := why_not(client))}
    before = table.rows_in_guide()
    found = {
        name: table.row(name, {scenario: grid.outcome(name, scenario) for scenario in SCENARIOS})
        for name in CLIENTS
        if name not in missing
    }
    rows = [row for name in CLIENTS if (row := found.get(name) or table.of_client(before, name))]
    if os.environ.get("CELLFEED_WRITE_GRID"):
        table.write(rows)
        return
    assert rows == before, "run `make grid` and look at what changed"
    if missing:
        pytest.skip(f"the rows of these clients are not checked: {missing}")
