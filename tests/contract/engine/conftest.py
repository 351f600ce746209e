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
from tests.support.local_mysql import EMPTY


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "mysql", "mysql server", "test kit"])
def open_engine(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> Iterator[EngineMaker]:
    """Opens engines on the same storage; every one is closed at the end."""
    opened: list[Engine] = []
    address = (
        request.getfixturevalue(EMPTY[request.param]).address if request.param in EMPTY else None
    )

    def open_one(
        datastore: str = "trips", shards: int = SHARDS, codec: int = CODEC_JSON_ZSTD
    ) -> Engine:
        engine: Engine
        if address is not None:
            engine = MySqlEngine(
                MySqlServer(address), datastore, shards, create=True, codec=codec, clock_us=clock
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
    name = str(request.node.callspec.params["open_engine"])
    return {"test kit": "sqlite", "mysql server": "mysql"}.get(name, name)


@pytest.fixture
def engine(open_engine: EngineMaker) -> Engine:
    return open_engine()
