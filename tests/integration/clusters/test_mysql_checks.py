"""A server that could lose or mix up cells is refused before anything is written; with the
variable, its value, the value wanted, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pymysql.connections import Connection

from cellfeed.store.engines.mysql import checks
from cellfeed.store.engines.mysql.checks import CLOCK_SKEW_MAX_S, check_server, refuse
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.migrations import migrate
from cellfeed.store.engines.mysql.server_rules import PACKET_BYTES_MIN, Problem, ServerRole
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.engines.mysql.table_checks import check_tables
from cellfeed.store.errors import ProtectData, WrongServerSettings
from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration

LAYOUT = Layout("trips", 3)


@pytest.fixture
def connection(empty_mariadb: MariaDB) -> Iterator[Connection[Any]]:
    with (
        closing(MySqlServer(empty_mariadb.url)) as server,
        closing(server.open_connection()) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def badly_started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """A server whose settings that cannot be changed at run time are wrong."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with local_mariadb.running(("--skip-log-bin", "--log-slave-updates=OFF")) as server:
        yield server


def problems_of(
    connection: Connection[Any], role: ServerRole = ServerRole.ANY
) -> dict[str, Problem]:
    return {problem.variable: problem for problem in check_server(connection, role)}


def test_a_server_that_is_set_up_well_has_no_problem(connection: Connection[Any]) -> None:
    assert check_server(connection, ServerRole.MASTER) == []
    refuse("server", [])


@pytest.mark.parametrize(
    ("variable", "wrong", "wanted"),
    [
        ("innodb_flush_log_at_trx_commit", "2", "1"),
        ("innodb_flush_log_at_trx_commit", "0", "1"),
        ("sync_binlog", "0", "1"),
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("gtid_strict_mode", "OFF", "ON"),
    ],
)
def test_a_changed_server_setting_is_reported_with_the_statement_that_mends_it(
    connection: Connection[Any], empty_mariadb: MariaDB, variable: str, wrong: str, wanted: str
) -> None:
    query(connection, f"SET GLOBAL {variable} = {wrong}")
    try:
        with pytest.raises(WrongServerSettings) as refused:
            MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 3, create=True)
        assert f"{variable} is {wrong}, wanted {wanted}" in str(refused.value)
        assert refused.value.exit_code == 3
        assert not query(connection, "SHOW DATABASES LIKE 'trips%'")
        statement = problems_of(connection)[variable].fix.split("`")[1]
        query(connection, statement)
        assert check_server(connection) == []
    finally:
        query(connection, f"SET GLOBAL {variable} = {wanted}")


def test_settings_that_need_a_restart_are_marked_in_the_report(badly_started: MariaDB) -> None:
    with (
        closing(MySqlServer(badly_started.url)) as server,
        closing(server.open_connection()) as connection,
    ):
        found = problems_of(connection)
    assert {"log_bin", "log_slave_updates"} <= set(found)
    assert "`log_bin = ON` under [mysqld]" not in found["log_bin"].fix  # it takes a name, not ON
    assert "log_bin = " in found["log_bin"].fix
    for variable in ("log_bin", "log_slave_updates"):
        assert found[variable].value == "OFF"
        assert "restart" in found[variable].fix
    with pytest.raises(WrongServerSettings, match="log_bin is OFF"):
        MySqlEngine(MySqlServer(badly_started.url), "trips", 3, create=True)


def test_every_wrong_setting_is_reported_at_once(badly_started: MariaDB) -> None:
    with (
        closing(MySqlServer(badly_started.url)) as server,
        pytest.raises(WrongServerSettings) as refused,
        server.connection() as connection,
    ):
        refuse(server, check_server(connection, ServerRole.MINION))
    assert str(refused.value).count("\n  - ") == 3


def test_too_small_packets_are_reported_with_the_bytes_needed(
    connection: Connection[Any], empty_mariadb: MariaDB
) -> None:
    before = query(connection, "SELECT @@GLOBAL.max_allowed_packet")[0][0]
    query(connection, "SET GLOBAL max_allowed_packet = 16777216")
    try:
        problem = problems_of(connection)["max_allowed_packet"]
        assert (problem.value, problem.wanted) == ("16777216", str(PACKET_BYTES_MIN))
        query(connection, problem.fix.split("`")[1])
        assert "max_allowed_packet" not in problems_of(connection)
        # A packet larger than needed is no problem.
        query(connection, f"SET GLOBAL max_allowed_packet = {2 * PACKET_BYTES_MIN}")
        assert check_server(connection) == []
    finally:
        query(connection, f"SET GLOBAL max_allowed_packet = {int(before)}")


@pytest.mark.parametrize("role", [ServerRole.MASTER, ServerRole.MINION, ServerRole.ANY])
def test_a_master_must_take_writes_and_a_minion_must_not(
    connection: Connection[Any], role: ServerRole
) -> None:
    for read_only in (True, False):
        query(connection, f"SET GLOBAL read_only = {int(read_only)}")
        try:
            wrong = (role is ServerRole.MASTER and read_only) or (
                role is ServerRole.MINION and not read_only
            )
            assert ("read_only" in problems_of(connection, role)) == wrong
        finally:
            query(connection, "SET GLOBAL read_only = 0")


@pytest.mark.parametrize(
    ("statement", "variable", "value"),
    [
        (
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "tx_isolation",
            "REPEATABLE-READ",
        ),
        ("SET NAMES latin1", "character_set_client", "latin1"),
        ("SET character_set_results = latin1", "character_set_results", "latin1"),
        ("SET sql_log_bin = 0", "sql_log_bin", "OFF"),
    ],
)
def test_a_session_with_changed_settings_is_refused(
    connection: Connection[Any], statement: str, variable: str, value: str
) -> None:
    query(connection, statement)
    problem = problems_of(connection)[variable]
    assert problem.value == value
    assert "init_connect" in problem.fix


@pytest.mark.parametrize("skew_s", [-3600.0, -30.0, 30.0, 86_400.0])
def test_a_clock_that_is_off_is_reported_with_amount_and_direction(
    connection: Connection[Any], skew_s: float
) -> None:
    query(connection, f"SET SESSION timestamp = UNIX_TIMESTAMP(SYSDATE(6)) + {skew_s}")
    problem = problems_of(connection)["clock"]
    assert f"{abs(skew_s):.0f}"[:2] in problem.value or f"{abs(skew_s) - 0.1:.1f}" in problem.value
    assert ("ahead of" in problem.value) == (skew_s > 0)
    assert "chrony" in problem.fix


def test_a_clock_within_the_limit_is_no_problem(connection: Connection[Any]) -> None:
    query(
        connection, f"SET SESSION timestamp = UNIX_TIMESTAMP(SYSDATE(6)) + {CLOCK_SKEW_MAX_S / 2}"
    )
    assert check_server(connection) == []


def test_an_old_server_version_is_reported(
    connection: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MARIADB_VERSION_MIN", (99, 0))
    assert "99.0 or newer" in problems_of(connection)["version"].wanted


def test_vitess_is_refused_by_name() -> None:
    [problem] = checks._version_problems("8.0.30-Vitess", (8, 0))
    assert "not atomic" in problem.why


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            (
                "ALTER TABLE trips_0001.cell MODIFY column_name VARCHAR(128) CHARACTER SET utf8mb4"
                " COLLATE utf8mb4_general_ci NOT NULL"
            ),
            "general_ci",
        ),
        (
            "ALTER TABLE trips_0001.cell MODIFY ref_key INT NOT NULL",
            "trips_0001.cell.ref_key is int(11), wanted bigint",
        ),
        (
            "ALTER TABLE trips_0001.cell MODIFY created_at DATETIME NOT NULL",
            "trips_0001.cell.created_at is datetime, wanted datetime(6)",
        ),
        ("ALTER TABLE trips_0001.cell DROP KEY triple", "trips_0001.cell KEY triple is missing"),
        (
            (
                "ALTER TABLE trips_0001.cell DROP KEY triple, ADD UNIQUE KEY triple (row_key,"
                " column_name)"
            ),
            "trips_0001.cell KEY triple is missing",
        ),
        (
            (
                "ALTER TABLE trips_0001.cell DROP KEY triple, ADD KEY triple (row_key, column_name,"
                " ref_key)"
            ),
            "trips_0001.cell KEY triple is missing",
        ),
        (
            "ALTER TABLE trips_0001.cell ENGINE = MyISAM",
            "trips_0001.cell ENGINE is MyISAM, wanted InnoDB",
        ),
    ],
)
def test_a_table_in_which_cells_could_be_mixed_up_is_refused(
    connection: Connection[Any], empty_mariadb: MariaDB, change: str, told: str
) -> None:
    MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 3, create=True).close()
    assert check_tables(connection, LAYOUT) == []
    query(connection, change)
    with pytest.raises(WrongServerSettings) as refused:
        MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 3)
    assert told in str(refused.value)
    [problem] = check_tables(connection, LAYOUT)
    fix = problem.fix.split("`")[1]
    query(connection, fix.replace("ADD UNIQUE", "DROP KEY IF EXISTS triple, ADD UNIQUE"))
    assert check_tables(connection, LAYOUT) == []


def test_a_missing_table_is_refused_and_not_made_again(
    connection: Connection[Any], empty_mariadb: MariaDB
) -> None:
    with closing(MySqlServer(empty_mariadb.url)) as server:
        migrate(server, LAYOUT, create=True)
    query(connection, "DROP DATABASE trips_0001")
    with pytest.raises(ProtectData, match=r"trips_0001\.cell is missing.*restore it"):
        MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 3, create=True)
    assert not query(connection, "SHOW DATABASES LIKE 'trips_0001'")
