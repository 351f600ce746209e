"""How a datastore's tables are made and changed on a real server: only where the caller says so,
with a kill at any point, and never over somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.migrations import check_schema, migrate
from cellfeed.store.engines.mysql.schema_steps import (
    SCHEMA_VERSION,
    STEPS,
    RunStatement,
    Step,
    add_column,
)
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import FailpointReached, passes, set_failpoint
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration

LAYOUT = Layout("trips", 4)


def _note_on_cells(connection: Connection[Any], layout: Layout, run: RunStatement) -> None:
    for shard in layout.owned_shards:
        add_column(
            connection,
            run,
            layout.database(shard),
            "cell",
            "note",
            "VARBINARY(10) NOT NULL DEFAULT ''",
        )


LATER = (*STEPS, Step(SCHEMA_VERSION + 1, "a note on each cell", _note_on_cells))


@pytest.fixture
def server(empty_mariadb: MariaDB) -> Iterator[MySqlServer]:
    with closing(MySqlServer(empty_mariadb.url)) as opened:
        yield opened


def rows(server: MySqlServer, sql: str) -> list[tuple[Any, ...]]:
    with server.connection() as connection:
        return list(query(connection, sql))


def databases(server: MySqlServer) -> set[str]:
    return {name for (name,) in rows(server, "SHOW DATABASES")} - {
        "mysql",
        "information_schema",
        "performance_schema",
        "sys",
    }


def test_no_table_is_made_without_a_request(server: MySqlServer, empty_mariadb: MariaDB) -> None:
    with pytest.raises(ProtectData, match="cellfeed cluster init"):
        MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 4)
    with pytest.raises(ProtectData, match="cellfeed cluster init"):
        migrate(server, LAYOUT)
    assert databases(server) == set()


def test_only_the_shards_of_the_cluster_are_made(server: MySqlServer) -> None:
    migrate(server, Layout("trips", 4, owned=[1, 3]), create=True)
    assert databases(server) == {"trips_meta", "trips_0001", "trips_0003"}
    assert [
        int(shard)
        for (shard,) in rows(server, "SELECT shard FROM trips_meta.shard_counter ORDER BY shard")
    ] == [1, 3]


@pytest.mark.parametrize(
    ("failpoint", "at_pass"),
    [("after_row", 1), ("inside_step", 1), ("inside_step", 3), ("before_version", 1)],
)
def test_making_a_datastore_that_was_killed_is_refused_until_it_is_finished(
    server: MySqlServer, empty_mariadb: MariaDB, failpoint: str, at_pass: int
) -> None:
    name = f"mysql.migrate.{failpoint}"
    set_failpoint(name, "raise", at_pass)
    with pytest.raises(FailpointReached):
        migrate(server, LAYOUT, create=True)
    assert passes(name) == at_pass
    with pytest.raises(ProtectData, match="was not finished"):
        check_schema(server, LAYOUT)
    set_failpoint(name, "sleep:0")
    assert [step.version for step in migrate(server, LAYOUT, create=True)] == [
        step.version for step in STEPS
    ]
    check_schema(server, LAYOUT)
    with closing(MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 4)) as engine:
        assert [
            result.outcome
            for result in engine.put([new_cell(UUID(int=n), "BASE", 1, {}) for n in range(20)])
        ] == [Outcome.STORED] * 20


def test_a_process_killed_while_it_makes_a_datastore_leaves_neither_lock_nor_dead_end(
    server: MySqlServer, empty_mariadb: MariaDB
) -> None:
    program = (
        "from cellfeed.store.engines.mysql.connections import MySqlServer\n"
        "from cellfeed.store.engines.mysql.migrations import Layout, migrate\n"
        f"migrate(MySqlServer({empty_mariadb.url!r}), Layout('trips', 4), create=True)"
    )
    environment = {**os.environ, "CELLFEED_FAILPOINTS": "mysql.migrate.inside_step=kill@3"}
    killed = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert killed.returncode == -signal.SIGKILL
    assert databases(server) == {"trips_meta", "trips_0000", "trips_0001"}
    migrate(server, LAYOUT, create=True)
    check_schema(server, LAYOUT)


def test_a_killed_step_is_run_again_and_finds_its_first_half(
    server: MySqlServer, empty_mariadb: MariaDB
) -> None:
    migrate(server, LAYOUT, create=True)
    with closing(MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 4)) as engine:
        engine.put([new_cell(UUID(int=n), "BASE", 1, {"n": n}) for n in range(20)])
    done: list[int] = []

    def dies_in_the_middle(connection: Connection[Any], layout: Layout, run: RunStatement) -> None:
        for shard in (0, 1):
            add_column(
                connection,
                run,
                layout.database(shard),
                "cell",
                "note",
                "VARBINARY(10) NOT NULL DEFAULT ''",
            )
            done.append(shard)
        raise FailpointReached

    with pytest.raises(FailpointReached):
        migrate(
            server,
            LAYOUT,
            steps=(*STEPS, Step(SCHEMA_VERSION + 1, "a note on each cell", dies_in_the_middle)),
        )
    assert done == [0, 1]
    check_schema(server, LAYOUT)
    assert [step.title for step in migrate(server, LAYOUT, steps=LATER)] == ["a note on each cell"]
    assert migrate(server, LAYOUT, steps=LATER) == []
    check_schema(server, LAYOUT, LATER)
    kept = sum(
        int(count)
        for shard in range(4)
        for (count,) in rows(server, f"SELECT COUNT(*) FROM trips_{shard:04d}.cell WHERE note = ''")
    )
    assert kept == 20


def test_an_older_schema_is_refused_with_the_command_that_moves_it_on(server: MySqlServer) -> None:
    migrate(server, LAYOUT, create=True)
    with pytest.raises(ProtectData, match="cellfeed cluster migrate"):
        check_schema(server, LAYOUT, LATER)


def test_a_newer_schema_is_refused_and_left_as_it_is(
    server: MySqlServer, empty_mariadb: MariaDB
) -> None:
    migrate(server, LAYOUT, create=True, steps=LATER)
    for attempt in (
        lambda: check_schema(server, LAYOUT),
        lambda: migrate(server, LAYOUT, create=True),
    ):
        with pytest.raises(ProtectData, match="newer cellfeed"):
            attempt()
    with pytest.raises(ProtectData, match="newer cellfeed"):
        MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 4, create=True)
    assert rows(server, "SELECT schema_version FROM trips_meta.datastore") == [
        (str(SCHEMA_VERSION + 1),)
    ]


def test_another_shard_count_is_refused_even_before_the_first_migration_is_done(
    server: MySqlServer,
) -> None:
    set_failpoint("mysql.migrate.after_row", "raise")
    with pytest.raises(FailpointReached):
        migrate(server, LAYOUT, create=True)
    with pytest.raises(ProtectData, match="with 4 shards"):
        migrate(server, Layout("trips", 8), create=True)


@pytest.mark.parametrize(
    "foreign",
    [
        ["CREATE DATABASE trips_meta", "CREATE TABLE trips_meta.orders (n INT PRIMARY KEY)"],
        ["CREATE DATABASE trips_meta", "CREATE TABLE trips_meta.datastore (n INT PRIMARY KEY)"],
        ["CREATE DATABASE trips_0002", "CREATE TABLE trips_0002.orders (n INT PRIMARY KEY)"],
    ],
)
def test_databases_of_other_programs_are_refused_and_left_alone(
    server: MySqlServer, foreign: list[str]
) -> None:
    for statement in foreign:
        rows(server, statement)
    before = databases(server)
    with pytest.raises(ProtectData, match="another name"):
        migrate(server, LAYOUT, create=True)
    assert databases(server) == before


def test_the_databases_of_a_datastore_with_a_longer_name_are_not_in_the_way(
    server: MySqlServer,
) -> None:
    migrate(server, Layout("trips_2", 2), create=True)
    migrate(server, LAYOUT, create=True)
    check_schema(server, Layout("trips_2", 2))
    check_schema(server, LAYOUT)


def test_of_two_concurrent_creations_one_creates_and_the_other_finds_the_tables(
    server: MySqlServer,
) -> None:
    done: list[list[int]] = []

    def make() -> None:
        done.append([step.version for step in migrate(server, LAYOUT, create=True)])

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [[], [step.version for step in STEPS]]


def test_a_table_of_a_shard_that_is_on_its_way_gets_checksums_too(
    server: MySqlServer, empty_mariadb: MariaDB
) -> None:
    """A move gives it another name, and its rows come back with it."""
    migrate(server, LAYOUT, create=True, steps=STEPS[:4])
    empty_mariadb.sql("RENAME TABLE trips_0001.cell TO trips_0001.moved_cell")
    assert [step.version for step in migrate(server, LAYOUT)] == [5]
    for table in ("trips_0000.cell", "trips_0001.moved_cell"):
        assert empty_mariadb.sql(f"SELECT crc FROM {table}") == []


def test_a_step_changes_the_shards_of_the_datastore_although_its_caller_names_others(
    server: MySqlServer,
) -> None:
    migrate(server, Layout("trips", 4, [0, 2]), create=True)
    assert [step.version for step in migrate(server, LAYOUT, steps=LATER)] == [SCHEMA_VERSION + 1]
    check_schema(server, LAYOUT, LATER)
