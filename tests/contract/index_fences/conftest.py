"""An index of one shard, over each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from tests.support.fenced_index import Index
from tests.support.local_mysql import EMPTY


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("mysql", marks=[pytest.mark.integration, pytest.mark.xdist_group("mariadb")]),
        pytest.param(
            "mysql server", marks=[pytest.mark.integration, pytest.mark.xdist_group("mariadb")]
        ),
    ]
)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index]:
    engine: SqliteEngine | MySqlEngine
    if request.param == "sqlite":
        engine = SqliteEngine(tmp_path, "trips", 1)
    else:
        address = request.getfixturevalue(EMPTY[request.param]).address
        engine = MySqlEngine(MySqlServer(address), "trips", 1, create=True)
    made = Index(engine)
    yield made
    made.datastore.close()
