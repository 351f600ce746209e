"""Every engine of the contract, on storage of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.cells.body_codec import CODEC_JSON_ZSTD
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.testing.failing_master import FailingMaster
from tests.support.engine_steps import SHARDS, Clock, EngineMaker


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "mysql", "test kit"])
def open_engine(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> Iterator[EngineMaker]:
    """Opens engines on the same storage; every one is closed at the end."""
    opened: list[Engine] = []
    url = request.getfixturevalue("empty_mariadb").url if request.param == "mysql" else None

    def open_one(
        datastore: str = "trips", shards: int = SHARDS, codec: int = CODEC_JSON_ZSTD
    ) -> Engine:
        engine: Engine
        if url is not None:
            engine = MySqlEngine(
                MySqlServer(url), datastore, shards, create=True, codec=codec, clock_us=clock
            )
        else:
            engine = SqliteEngine(tmp_path, datastore, shards, codec=codec, clock_us=clock)
            if request.param == "test kit":
                engine = FailingMaster(engine)
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        engine.close()


@pytest.fixture
def kind(open_engine: EngineMaker, request: pytest.FixtureRequest) -> str:
    """The engine under test, as its failpoints name it."""
    return str(request.node.callspec.params["open_engine"]).replace("test kit", "sqlite")


@pytest.fixture
def engine(open_engine: EngineMaker) -> Engine:
    return open_engine()
