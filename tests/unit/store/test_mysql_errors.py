"""The meaning of each error of a server for the cells of a call: never "not written" of something
that may have been, never a retry that cannot help."""

from __future__ import annotations

import pymysql
import pytest

from cellfeed.store.engines.mysql.errors import (
    StatementFailed,
    commit_failed,
    failed,
    worth_another_try,
)
from cellfeed.store.errors import CellfeedError, DataDamaged, OutcomeUnknown, StorageUnavailable

READ_ONLY, INNODB_READ_ONLY, DEADLOCK, LOCK_TIMEOUT = 1290, 1836, 1213, 1205
DISK_FULL, TABLE_FULL, TOO_MANY, GONE, LOST, SHUTDOWN, KILLED, INTERRUPTED = (
    1021,
    1114,
    1040,
    2006,
    2013,
    1053,
    1927,
    1317,
)
BINLOG_WRITE, DURING_COMMIT, INDEX_CORRUPT, PACKET_TOO_LARGE = 1026, 1180, 1712, 1153
EVERY_CODE = (
    READ_ONLY,
    INNODB_READ_ONLY,
    DEADLOCK,
    LOCK_TIMEOUT,
    DISK_FULL,
    TABLE_FULL,
    TOO_MANY,
    GONE,
    LOST,
    SHUTDOWN,
    KILLED,
    INTERRUPTED,
    BINLOG_WRITE,
)


def error(code: int) -> pymysql.err.MySQLError:
    return pymysql.err.OperationalError(code, "as the server said")


@pytest.mark.parametrize("code", EVERY_CODE)
def test_no_error_before_a_commit_is_sent_counts_as_written(code: int) -> None:
    found = failed("db:3306", error(code))
    assert type(found) is StorageUnavailable
    assert found.definite
    assert found.retriable
    assert "nothing written" in str(found)
    assert "db:3306" in str(found)


@pytest.mark.parametrize("code", EVERY_CODE)
def test_a_statement_before_the_commit_of_the_same_packet_is_definite_too(code: int) -> None:
    assert (
        type(commit_failed("db", StatementFailed(code, "as the server said"))) is StorageUnavailable
    )


@pytest.mark.parametrize("code", [READ_ONLY, INNODB_READ_ONLY, DEADLOCK, LOCK_TIMEOUT, GONE])
def test_a_commit_that_the_server_rolled_back_or_never_got_is_definite(code: int) -> None:
    assert type(commit_failed("db", error(code))) is StorageUnavailable


@pytest.mark.parametrize(
    "code",
    [
        LOST,
        SHUTDOWN,
        KILLED,
        INTERRUPTED,
        DISK_FULL,
        TABLE_FULL,
        BINLOG_WRITE,
        DURING_COMMIT,
        0,
        9999,
    ],
)
def test_any_other_end_of_a_commit_is_unknown(code: int) -> None:
    found = commit_failed("db", error(code))
    assert isinstance(found, OutcomeUnknown)
    assert not found.definite
    assert found.retriable
    assert "put the same cells again" in str(found)


@pytest.mark.parametrize(
    "raised",
    [
        pymysql.err.InterfaceError(0, ""),
        pymysql.err.InternalError("Packet sequence number wrong"),
        TimeoutError("timed out"),
    ],
)
def test_an_error_without_a_code_is_a_lost_connection(raised: BaseException) -> None:
    assert isinstance(commit_failed("db", raised), OutcomeUnknown)
    assert isinstance(failed("db", raised), StorageUnavailable)


@pytest.mark.parametrize("when", [failed, commit_failed])
def test_a_damaged_index_is_reported_as_damage(when: object) -> None:
    found = when("db", error(INDEX_CORRUPT))  # type: ignore[operator]
    assert isinstance(found, DataDamaged)
    assert "restore" in str(found)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (READ_ONLY, "another one is master"),
        (INNODB_READ_ONLY, "innodb_read_only"),
        (DISK_FULL, "disk"),
        (TABLE_FULL, "disk"),
        (TOO_MANY, "max_connections"),
        (LOCK_TIMEOUT, "left open"),
        (PACKET_TOO_LARGE, "max_allowed_packet"),
        (1045, "password"),
        (1044, "rights"),
    ],
)
def test_an_error_that_an_operator_can_mend_names_the_remedy(code: int, advice: str) -> None:
    assert advice in str(failed("db", error(code)))


def chained(cause: BaseException, context: BaseException | None = None) -> StorageUnavailable:
    cause.__context__ = context
    found = StorageUnavailable("nothing written")
    found.__cause__ = cause
    return found


@pytest.mark.parametrize("code", [DEADLOCK, GONE, LOST, KILLED, SHUTDOWN])
def test_giving_way_and_a_dead_connection_are_worth_another_try(code: int) -> None:
    assert worth_another_try(chained(error(code)))


@pytest.mark.parametrize("code", [LOCK_TIMEOUT, READ_ONLY, TABLE_FULL, TOO_MANY])
def test_an_error_that_would_recur_or_has_waited_long_is_not_retriable(code: int) -> None:
    assert not worth_another_try(chained(error(code)))
    assert not worth_another_try(StorageUnavailable("the connections are closed"))


def test_a_time_out_is_not_tried_again() -> None:
    assert not worth_another_try(chained(error(LOST), TimeoutError("timed out")))


def test_the_servers_words_are_reported_up_to_a_limit() -> None:
    found: CellfeedError = failed("db", pymysql.err.DataError(1406, "x" * 10_000))
    assert "1406" in str(found)
    assert len(str(found)) < 500
