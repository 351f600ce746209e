"""The numbers of fences on every engine: they only rise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
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
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteEngine | MySqlEngine]:
    made: SqliteEngine | MySqlEngine
    if request.param == "sqlite":
        made = SqliteEngine(tmp_path, "trips", 1)
    else:
        address = request.getfixturevalue(EMPTY[request.param]).address
        made = MySqlEngine(MySqlServer(address), "trips", 1, create=True)
    with closing(made):
        yield made


def test_a_raise_that_comes_late_lowers_no_number(engine: SqliteEngine | MySqlEngine) -> None:
    engine.indexes.set_fences({0: 500})
    engine.indexes.set_fences({0: 400})
    assert engine.indexes.fences([0]) == {0: 500}
