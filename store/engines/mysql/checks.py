"""The settings that a MySQL or MariaDB server must have before cells are entrusted to it, checked
whenever an engine opens.

Each rule names the variable, the value wanted, the reason, and the line for the configuration file.
Nothing is set from here: a server's settings are its operator's, and one that is set at run time is
lost with the next restart.

Roles: a ``MASTER`` must take writes, a ``MINION`` must not; ``ANY`` checks only the settings that
every node of a cluster needs, since each may become master.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import WrongServerSettings

PACKET_BYTES_MIN: Final = 32 << 20
"""``max_allowed_packet``: the largest statement is a put of 8 MiB of bodies as hexadecimal digits
(16 MiB) and their keys; as much again is room."""

CLOCK_SKEW_MAX_S: Final = 5.0
"""How far a server's clock may be from ours, in seconds. Its clock stamps cells and ends leases;
hosts under NTP are within milliseconds."""

MARIADB_VERSION_MIN: Final = (10, 6)
MYSQL_VERSION_MIN: Final = (8, 0)
"""The oldest releases that their makers still mend, and the first whose data definition statements
are atomic."""


class ServerRole(StrEnum):
    """The role that a server is to have in its cluster; see the module."""

    MASTER = "master"
    MINION = "minion"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a server, and the statement or configuration line that mends
    it."""

    variable: str
    value: str
    wanted: str
    why: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.variable} is {self.value or 'not set'}, wanted {self.wanted}: {self.why}. Fix:"
            f" {self.fix}"
        )


class _Rule(NamedTuple):
    """A global variable that must have one value. ``at_run_time``: SET GLOBAL can change it."""

    variable: str
    wanted: str
    why: str
    at_run_time: bool = True
    renamed: str = ""
    """Its name on newer servers."""
    setting: str = ""
    """The value for the configuration file, where it differs from the value that the server
    shows."""

    def problem(self, value: str) -> Problem:
        line = (
            f"`{self.variable} = {self.setting or self.wanted}` under [mysqld] in the server's"
            " configuration file"
        )
        fix = (
            f"`SET GLOBAL {self.variable} = {self.wanted}`, and {line}"
            if self.at_run_time
            else f"{line}, then restart the server"
        )
        return Problem(self.variable, value, self.wanted, self.why, fix)


_LOST: Final = (
    "a crash of the machine would lose commits that were acknowledged, and give their ids to other"
    " cells"
)
_HANDED_ON: Final = (
    "a minion that is promoted must be able to hand on the transactions that it received as"
    " a minion"
)
_EVERYWHERE: Final = (
    _Rule("innodb_flush_log_at_trx_commit", "1", _LOST),
    _Rule("sync_binlog", "1", _LOST),
    _Rule(
        "log_bin",
        "ON",
        "minions follow the binary log; without it rows also become visible before they are on"
        " disk",
        at_run_time=False,
        setting="binlog",
    ),
    _Rule(
        "binlog_format", "ROW", "statements may do something else on a minion than on their master"
    ),
    _Rule("binlog_row_image", "FULL", "a minion must be able to identify the row of a change"),
)
_MARIADB: Final = (
    _Rule("gtid_strict_mode", "ON", "a minion must refuse a history that differs from its own"),
    _Rule("log_slave_updates", "ON", _HANDED_ON, at_run_time=False),
)
_MYSQL: Final = (
    _Rule(
        "gtid_mode",
        "ON",
        "global transaction ids say which server has which commits",
        at_run_time=False,
    ),
    _Rule(
        "enforce_gtid_consistency",
        "ON",
        "a transaction without a global id could not be followed",
        at_run_time=False,
    ),
    _Rule("log_slave_updates", "ON", _HANDED_ON, at_run_time=False, renamed="log_replica_updates"),
)
_ROLE: Final = {
    ServerRole.MASTER: (_Rule("read_only", "OFF", "a master takes writes"),),
    ServerRole.MINION: (
        _Rule(
            "read_only",
            "ON",
            "a write to a minion would never reach the others, and end its replication",
        ),
    ),
    ServerRole.ANY: (),
}

_SESSION_CHARSETS: Final = (
    "character_set_client",
    "character_set_connection",
    "character_set_results",
)

_NAMED_MAX: Final = 5
"""Tables named in one message: a server that was set up wrongly has the same fault in thousands."""

_CELL_COLUMNS: Final = {
    "added_id": "bigint unsigned",
    "row_key": "binary(16)",
    "column_name": "varbinary(128)",
    "ref_key": "bigint",
    "body": "mediumblob",
    "created_at": "datetime(6)",
    "crc": "int unsigned",
}
"""Without display widths, which MariaDB shows and MySQL does not."""


def check_server(connection: Connection[Any], role: ServerRole = ServerRole.ANY) -> list[Problem]:
    """The faults in the server's settings, the session's and the clock; empty when all is well."""
    rows = query(connection, "SELECT VERSION()")
    version = str(rows[0][0])
    mariadb = "mariadb" in version.lower()
    rules = (*_EVERYWHERE, *(_MARIADB if mariadb else _MYSQL), *_ROLE[role])
    names = [name for rule in rules for name in (rule.variable, rule.renamed) if name]
    settings = _variables(connection, "GLOBAL", [*names, "max_allowed_packet"])
    problems = _version_problems(version, MARIADB_VERSION_MIN if mariadb else MYSQL_VERSION_MIN)
    for rule in rules:
        found = settings.get(rule.variable, settings.get(rule.renamed, ""))
        if found != rule.wanted:
            problems.append(rule.problem(found))
    problems += _packet_problems(int(settings.get("max_allowed_packet", "0")))
    return problems + _session_problems(connection) + _clock_problems(connection)


def check_tables(connection: Connection[Any], layout: Layout) -> list[Problem]:
    """The faults in the cell tables: one that is missing, a type, collation or key under which
    cells that differ would be one, an engine that loses them.

    It takes a few catalogue queries, for any number of shards.
    """
    shards = {
        layout.database(int(shard))
        for (shard,) in query(connection, f"SELECT shard FROM {layout.meta}.shard_counter")
    }
    ours = f"TABLE_NAME = 'cell' AND TABLE_SCHEMA REGEXP '^{layout.datastore}_[0-9]+$'"
    engines = query(
        connection, f"SELECT TABLE_SCHEMA, ENGINE FROM information_schema.TABLES WHERE {ours}"
    )
    if missing := sorted(shards - {str(database) for database, _ in engines}):
        return [_missing_tables(missing)]
    return (
        [
            problem
            for database, engine in engines
            if (problem := _engine_problem(str(database), str(engine)))
        ][:_NAMED_MAX]
        + _column_problems(connection, ours)
        + _key_problems(connection, ours, len(engines))
    )


def refuse(server: object, problems: Sequence[Problem]) -> None:
    """Raises WrongServerSettings, naming every problem and its fix, when there is one."""
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise WrongServerSettings(f"{server} is not set up to keep cells safely:{listed}")


# --- the parts ------------------------------------------------------------------------------------


def _variables(connection: Connection[Any], scope: str, names: Sequence[str]) -> Mapping[str, str]:
    wanted = ",".join(f"'{name}'" for name in names)
    return {
        str(name): str(value)
        for name, value in query(
            connection, f"SHOW {scope} VARIABLES WHERE Variable_name IN ({wanted})"
        )
    }


def _version_problems(version: str, minimum: tuple[int, int]) -> list[Problem]:
    major, minor = (int(part) for part in version.split("-")[0].split(".")[:2])
    if (major, minor) >= minimum:
        return []
    wanted = f"{minimum[0]}.{minimum[1]} or newer"
    return [
        Problem(
            "version",
            version,
            wanted,
            "older servers are not mended any more, and lack statements that are used here",
            "upgrade the server",
        )
    ]


def _packet_problems(packet_bytes: int) -> list[Problem]:
    if packet_bytes >= PACKET_BYTES_MIN:
        return []
    rule = _Rule(
        "max_allowed_packet",
        str(PACKET_BYTES_MIN),
        "with fewer bytes a large put would be refused, or its connection cut",
    )
    return [rule.problem(str(packet_bytes))]


def _session_problems(connection: Connection[Any]) -> list[Problem]:
    """A proxy or an ``init_connect`` may have changed settings that the connection asked for."""
    isolation = ("tx_isolation", "transaction_isolation")
    found = _variables(connection, "SESSION", [*_SESSION_CHARSETS, *isolation, "sql_log_bin"])
    fix = "let nothing between here and the server, nor its `init_connect`, change the session"
    problems = [
        Problem(name, found.get(name, ""), "utf8mb4", "text would be changed on its way", fix)
        for name in _SESSION_CHARSETS
        if found.get(name) != "utf8mb4"
    ]
    name = next((each for each in isolation if each in found), isolation[1])
    if found.get(name) != "READ-COMMITTED":
        why = (
            "duplicates are looked for after the counters are locked, and an older snapshot would"
            " not show them"
        )
        problems.append(Problem(name, found.get(name, ""), "READ-COMMITTED", why, fix))
    if found.get("sql_log_bin") != "ON":
        problems.append(
            Problem(
                "sql_log_bin",
                found.get("sql_log_bin", ""),
                "ON",
                "the writes of this session would reach no minion",
                fix,
            )
        )
    return problems


def _clock_problems(connection: Connection[Any]) -> list[Problem]:
    before_s = time.time()
    rows = query(connection, "SELECT UNIX_TIMESTAMP(NOW(6))")
    after_s = time.time()
    server_s = float(rows[0][0])
    # Somewhere between asking and hearing the server looked at its clock: only a time outside that
    # span is a difference.
    skew_s = server_s - after_s if server_s > after_s else min(0.0, server_s - before_s)
    if abs(skew_s) <= CLOCK_SKEW_MAX_S:
        return []
    found_as = f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} ours"
    why = "it stamps the cells and ends the leases"
    return [
        Problem(
            "clock",
            found_as,
            f"at most {CLOCK_SKEW_MAX_S:.0f} s apart",
            why,
            "synchronise both hosts' clocks (chrony or ntpd), or correct ours",
        )
    ]


def _missing_tables(databases: Sequence[str]) -> Problem:
    found_as = (
        f"missing, and so are {len(databases) - 1} others" if len(databases) > 1 else "missing"
    )
    return Problem(
        f"{databases[0]}.cell",
        found_as,
        "a table",
        "the shard's cells are in it",
        "restore it from a backup, or make this node a copy of another one",
    )


def _engine_problem(database: str, engine: str) -> Problem | None:
    if engine == "InnoDB":
        return None
    fix = f"`ALTER TABLE {database}.cell ENGINE = InnoDB`"
    return Problem(
        f"{database}.cell ENGINE",
        engine,
        "InnoDB",
        "only its commits are all or nothing, and durable",
        fix,
    )


def _column_problems(connection: Connection[Any], ours: str) -> list[Problem]:
    rows = query(
        connection,
        "SELECT COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, MIN(TABLE_SCHEMA), COUNT(*) FROM"
        f" information_schema.COLUMNS WHERE {ours} GROUP BY COLUMN_NAME, COLUMN_TYPE,"
        " COLLATION_NAME",
    )
    problems = []
    for name, kind, collation, database, count in rows:
        wanted = _CELL_COLUMNS.get(str(name))
        if wanted is None or _without_width(str(kind)) == wanted:
            continue
        found_as = (f"{kind} COLLATE {collation}" if collation else str(kind)) + (
            f" (in {count} shards)" if int(count) > 1 else ""
        )
        why = "cells that differ could be taken for one, or come back changed"
        fix = (
            f"`ALTER TABLE {database}.cell MODIFY {name}"
            f" {wanted.upper()}{'' if name == 'crc' else ' NOT NULL'}`"
        )
        problems.append(Problem(f"{database}.cell.{name}", found_as, wanted, why, fix))
    return problems


def _key_problems(connection: Connection[Any], ours: str, tables: int) -> list[Problem]:
    rows = query(
        connection,
        f"SELECT TABLE_SCHEMA FROM information_schema.STATISTICS WHERE {ours} AND NON_UNIQUE = 0"
        " AND INDEX_NAME = 'triple' AND CONCAT(SEQ_IN_INDEX, COLUMN_NAME) IN ('1row_key',"
        " '2column_name', '3ref_key') AND SUB_PART IS NULL GROUP BY TABLE_SCHEMA HAVING"
        " COUNT(*) = 3",
    )
    if len(rows) == tables:
        return []
    keyed = {str(database) for (database,) in rows}
    all_of_them = [
        str(database)
        for (database,) in query(
            connection, f"SELECT TABLE_SCHEMA FROM information_schema.TABLES WHERE {ours}"
        )
    ]
    why = "nothing else keeps a cell from being stored twice"
    return [
        Problem(
            f"{database}.cell KEY triple",
            "missing",
            "UNIQUE (row_key, column_name, ref_key)",
            why,
            f"`ALTER TABLE {database}.cell ADD UNIQUE KEY triple (row_key, column_name, ref_key)`",
        )
        for database in sorted(set(all_of_them) - keyed)[:_NAMED_MAX]
    ]


def _without_width(kind: str) -> str:
    name, _, rest = kind.partition("(")
    return f"{name}{rest.partition(')')[2]}" if name in ("bigint", "int") else kind
