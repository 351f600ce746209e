"""The settings of a MySQL or MariaDB server without which it could lose or mix up cells, as rules.

Each rule names the variable, the value wanted, the reason, and the line for the configuration file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

PACKET_BYTES_MIN: Final = 32 << 20
"""``max_allowed_packet``: the largest statement is a put of 8 MiB of bodies as hexadecimal digits
(16 MiB) and their keys; as much again is room."""

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


class Rule(NamedTuple):
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

EVERYWHERE: Final = (
    Rule("innodb_flush_log_at_trx_commit", "1", _LOST),
    Rule("sync_binlog", "1", _LOST),
)

REPLICATED: Final = (
    Rule(
        "log_bin",
        "ON",
        "minions follow the binary log; without it rows also become visible before they are on"
        " disk",
        at_run_time=False,
        setting="binlog",
    ),
    Rule(
        "binlog_format", "ROW", "statements may do something else on a minion than on their master"
    ),
    Rule("binlog_row_image", "FULL", "a minion must be able to identify the row of a change"),
)

OF_MARIADB: Final = (
    Rule("gtid_strict_mode", "ON", "a minion must refuse a history that differs from its own"),
    Rule("log_slave_updates", "ON", _HANDED_ON, at_run_time=False),
)

OF_MYSQL: Final = (
    Rule(
        "gtid_mode",
        "ON",
        "global transaction ids say which server has which commits",
        at_run_time=False,
    ),
    Rule(
        "enforce_gtid_consistency",
        "ON",
        "a transaction without a global id could not be followed",
        at_run_time=False,
    ),
    Rule("log_slave_updates", "ON", _HANDED_ON, at_run_time=False, renamed="log_replica_updates"),
)

_STALE: Final = "a read could show cells as they were some time ago, and miss acknowledged ones"

FRESH: Final[dict[str, frozenset[str]]] = {
    "group_replication_consistency": frozenset(
        {"BEFORE_ON_PRIMARY_FAILOVER", "BEFORE", "BEFORE_AND_AFTER"}
    ),
    "aurora_replica_read_consistency": frozenset({"", "GLOBAL"}),
    "tidb_read_staleness": frozenset({"", "0"}),
    "tidb_snapshot": frozenset({""}),
    "tidb_enable_external_ts_read": frozenset({"OFF", "0"}),
    "wsrep_sync_wait": frozenset({"1", "3", "5", "7", "9", "11", "13", "15"}),
}
"""Variables of services and forks by which reads may be stale, and the values by which they are
not. A server that does not know the variable has nothing of the kind."""


def stale_problem(name: str, value: str) -> Problem:
    """The problem of a variable of ``FRESH`` that has another value."""
    wanted = " or ".join(repr(each) for each in sorted(FRESH[name]))
    return Problem(
        name, repr(value), wanted, _STALE, "set it so in the service's parameters, or for the user"
    )


OF_ROLE: Final = {
    ServerRole.MASTER: (Rule("read_only", "OFF", "a master takes writes"),),
    ServerRole.MINION: (
        Rule(
            "read_only",
            "ON",
            "a write to a minion would never reach the others, and end its replication",
        ),
    ),
    ServerRole.ANY: (),
}
