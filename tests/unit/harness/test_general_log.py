"""The reader of general logs: it finds a write that nobody asked the server about, and takes no
other for one."""

from __future__ import annotations

import pytest

from tests.faults.general_log import unguarded_writes

BEGINS = (
    "261124  6:05:30\t     9 Connect\troot@127.0.0.1 on  using TCP/IP\n\t\t     9 Query\tSET"
    " time_zone = '+00:00', group_concat_max_len = 67108864\n"
)
ROLE = (
    "\t\t     9 Query\tBEGIN /*T! PESSIMISTIC */;"
    "SELECT IF(@@GLOBAL.read_only = 0 AND NOT EXISTS (SELECT 1), 1, 2);"
    "REPLACE INTO trips_meta.state_entry VALUES (X'636c75737465722f726f6c65', X'7b', 2);COMMIT\n"
)
GUARD = "SELECT IF(@@GLOBAL.read_only = 0 AND (SELECT 1) = 1, 1, (SELECT 2))"


def log(*packets: str, made: bool = True) -> str:
    return (
        BEGINS
        + (ROLE if made else "")
        + "".join(f"\t\t     9 Query\t{packet}\n" for packet in packets)
    )


@pytest.mark.parametrize(
    "packets",
    [
        (f"BEGIN;{GUARD};INSERT INTO t VALUES (1);COMMIT",),
        (
            f"BEGIN;SELECT r FROM t FOR UPDATE;{GUARD};SELECT 1",
            "BEGIN NOT ATOMIC UPDATE t SET r = 1;DELETE FROM t; END;COMMIT",
        ),
        (f"{GUARD};CREATE TABLE t (\n  a INT\n)",),
        (
            (
                "BEGIN;UPDATE m.shard_counter SET leader_epoch = 3;REPLACE INTO m.state_entry (a)"
                " VALUES ('cluster/role');COMMIT"
            ),
        ),
        ("REPLACE INTO m.state_entry VALUES ('cluster/confirmed', UUID(), 0)",),
        ("SET SESSION sql_log_bin = 0", "DROP DATABASE trips_0001", "SET SESSION sql_log_bin = 1"),
        ("BEGIN;INSERT INTO t VALUES (1)", "ROLLBACK"),
        ("SELECT GET_LOCK('a', 2)", "SHOW SLAVE STATUS", "STOP SLAVE"),
    ],
)
def test_guarded_writes_and_statements_that_write_nothing_pass(packets: tuple[str, ...]) -> None:
    assert unguarded_writes(log(*packets)) == []


@pytest.mark.parametrize(
    "packets",
    [
        ("BEGIN;INSERT INTO t VALUES (1);COMMIT",),
        ("BEGIN;UPDATE t SET r = 1", "COMMIT"),
        ("BEGIN NOT ATOMIC UPDATE t SET r = 1;DELETE FROM t; END",),
        ("INSERT INTO t VALUES (1)",),
        (GUARD, "DROP TABLE t"),
        (f"BEGIN;{GUARD};INSERT INTO t VALUES (1);COMMIT", "BEGIN;INSERT INTO t VALUES (2);COMMIT"),
        ("SET SESSION sql_log_bin = 0", "SET SESSION sql_log_bin = 1", "REPLACE INTO t VALUES (1)"),
    ],
)
def test_a_write_without_a_guard_is_found(packets: tuple[str, ...]) -> None:
    assert unguarded_writes(log(*packets))


def test_servers_that_have_no_role_yet_and_other_programs_are_not_judged() -> None:
    assert (
        unguarded_writes(
            log("CREATE DATABASE d", "BEGIN;INSERT INTO d.t VALUES (1);COMMIT", made=False)
        )
        == []
    )
    tests_own = (
        "261124  6:05:30\t     8 Connect\troot@127.0.0.1 on  using TCP/IP\n\t\t     8 Query\tDROP"
        " DATABASE d\n"
    )
    assert unguarded_writes(log() + tests_own) == []
    restarted = (
        "/usr/sbin/mariadbd, Version: 10.11 (Debian 12). started with:\nTime\t\t    Id"
        " Command\tArgument\n\t\t     9 Query\tRENAME TABLE a TO b\n"
    )
    assert unguarded_writes(log() + restarted) == []  # connection 9 is a thread of replication now
    assert unguarded_writes(log() + "\t\t     7 Query\tCREATE TABLE by_replication (a INT)\n") == []
