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
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.server_rules import (
    EVERYWHERE,
    FRESH,
    MARIADB_VERSION_MIN,
    MYSQL_VERSION_MIN,
    OF_MARIADB,
    OF_MYSQL,
    OF_ROLE,
    PACKET_BYTES_MIN,
    REPLICATED,
    Problem,
    Rule,
    ServerRole,
    stale_problem,
)
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import WrongServerSettings

CLOCK_SKEW_MAX_S: Final = 5.0
"""How far a server's clock may be from ours, in seconds. Its clock stamps cells and ends leases;
hosts under NTP are within milliseconds."""


_SESSION_CHARSETS: Final = (
    "character_set_client",
    "character_set_connection",
    "character_set_results",
)


def check_server(
    connection: Connection[Any], role: ServerRole = ServerRole.ANY, *, managed: bool = False
) -> list[Problem]:
    """The faults in the server's settings, the session's and the clock; empty when all is well.
    ``managed``: its replication is not ours to check (:mod:`cellfeed.store.engines.mysql.managed`).
    """
    rows = query(connection, "SELECT VERSION()")
    version = str(rows[0][0])
    mariadb = "mariadb" in version.lower()
    replication = (*REPLICATED, *(OF_MARIADB if mariadb else OF_MYSQL), *OF_ROLE[role])
    rules = EVERYWHERE if managed else (*EVERYWHERE, *replication)
    names = [name for rule in rules for name in (rule.variable, rule.renamed) if name]
    settings = _variables(connection, "GLOBAL", [*names, "max_allowed_packet"])
    problems = _version_problems(version, MARIADB_VERSION_MIN if mariadb else MYSQL_VERSION_MIN)
    for rule in rules:
        found = settings.get(rule.variable, settings.get(rule.renamed, ""))
        if found != rule.wanted:
            problems.append(rule.problem(found))
    problems += _stale_problems(connection) if managed else []
    problems += _packet_problems(int(settings.get("max_allowed_packet", "0")))
    return problems + _session_problems(connection, managed) + _clock_problems(connection)


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
    if "vitess" in version.lower():
        return [
            Problem(
                "version",
                version,
                "MySQL or MariaDB",
                "its commits over several keyspaces are not atomic: a counter was seen ahead of its"
                " rows, so readers would skip cells",
                "name a server without Vitess in front of it",
            )
        ]
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
    rule = Rule(
        "max_allowed_packet",
        str(PACKET_BYTES_MIN),
        "with fewer bytes a large put would be refused, or its connection cut",
    )
    return [rule.problem(str(packet_bytes))]


def _stale_problems(connection: Connection[Any]) -> list[Problem]:
    """Of the session, which has the values of the server unless somebody gives the user others."""
    return [
        stale_problem(name, value)
        for name, value in _variables(connection, "SESSION", [*FRESH]).items()
        if value not in FRESH[name] and not (name == "wsrep_sync_wait" and _alone(connection))
    ]


def _alone(connection: Connection[Any]) -> bool:
    """Whether a server that could be a node of a Galera cluster is none."""
    return _variables(connection, "GLOBAL", ["wsrep_on"]).get("wsrep_on", "OFF") != "ON"


def _session_problems(connection: Connection[Any], managed: bool) -> list[Problem]:
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
    if found.get("sql_log_bin") != "ON" and not managed:
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
