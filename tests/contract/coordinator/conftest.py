"""Every coordinator of the contract, on storage of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress, parse_zookeeper_url
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.two_clocks import Time


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(params=["sqlite", "mysql", "zookeeper", "zookeeper in memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateTable]:
    with ExitStack() as opened:
        if request.param == "mysql":
            engine = opened.enter_context(
                closing(
                    MySqlEngine(
                        MySqlServer(request.getfixturevalue("empty_mariadb").url),
                        "trips",
                        1,
                        create=True,
                    )
                )
            )
            yield engine.state
        else:
            yield opened.enter_context(closing(SqliteState(tmp_path / "state.sqlite3")))


@pytest.fixture
def coordinator(
    request: pytest.FixtureRequest, state: StateTable, time: Time, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Coordinator]:
    wanted = request.node.callspec.params.values()
    if "zookeeper in memory" in wanted:
        tree = ZooKeeperTree()
        connect = lambda _, timeout_s: tree.begin(timeout_s)  # noqa: E731
        with closing(
            ZooKeeperCoordinator(
                ZooKeeperAddress("in memory"), state, clock=time.now_s, connect=connect
            )
        ) as opened:
            yield opened
    elif "zookeeper" in wanted:
        address = parse_zookeeper_url(
            f"{request.getfixturevalue('zookeeper_server').url}/contract-{uuid4()}"
        )
        with closing(ZooKeeperCoordinator(address, state, clock=time.now_s)) as opened:
            yield opened
    else:
        monkeypatch.setattr(state, "now_us", lambda: time.now_us)
        yield StoreCoordinator(state, clock=time.now_s)
