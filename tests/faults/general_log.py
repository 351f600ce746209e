"""Reads a MariaDB server's general log, and names every write of a cellfeed process that came
without the guard (``store/engines/mysql/guard.py``): the check of rule 10, over whole fault runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOG_FILE: Final = "general.log"
OPTIONS: Final = ("--general-log=1", f"--general-log-file={LOG_FILE}")
"""The options by which a server writes one."""

_ENTRY: Final = re.compile(
    r"^(?:\d{6}\s+\d+:\d\d:\d\d)?\t\s*(\d+) (Connect|Query|Quit|Init DB|Binlog Dump|Kill|Connect"
    r" Out|Statistics)\t?(.*)$"
)
_STARTED: Final = "started with:"
"""The end of the line by which a server's log begins again."""

_OURS: Final = "group_concat_max_len"
"""Part of the statement by which each connection of cellfeed begins: the tests' own connections
have another."""

_GUARD: Final = "@@GLOBAL.read_only = 0 AND"
_WRITES: Final = re.compile(
    r"^\s*(?:BEGIN NOT"
    r" ATOMIC\s+)?(INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|RENAME|TRUNCATE|LOAD)\b",
    re.IGNORECASE,
)
_ROLE_WRITTEN: Final = re.compile(
    r"REPLACE INTO \w+\.state_entry .*(?:'cluster/role'|X'636c75737465722f726f6c65')", re.DOTALL
)
_CONFIRMED: Final = "'cluster/confirmed'"


@dataclass
class _Session:
    """One connection: the transaction that it is in, and whether the guard was asked in it."""

    ours: bool = False
    in_transaction: bool = False
    guarded: bool = False
    wrote: str = ""
    unlogged: bool = False
    raises_epoch: bool = False


def unguarded_writes(log: str) -> list[str]:
    """The first words of each write that was committed, or could be, without a guard.

    Exempt are the statements that make a bare server a cluster's (it has no role yet); the
    promotion that raises the epoch on a server that takes no writes; the entry by which a minion
    confirms a master; and statements that are not part of the history.
    """
    sessions: dict[int, _Session] = {}
    found = []
    has_role = False
    for connection, command, text in _entries(log):
        if command == _STARTED:
            # numbers of connections begin again, and a thread of replication may get one that was a
            # client's
            sessions.clear()
            continue
        if command == "Connect":
            sessions[connection] = _Session()
            continue
        session = sessions.get(connection)  # the threads of replication have none
        if session is None or command != "Query":
            continue
        session.ours = session.ours or _OURS in text
        if not session.ours:
            continue
        after_guard = False
        for statement in text.split(";"):
            found += _judged(session, statement.strip(), after_guard, has_role)
            after_guard = _GUARD in statement
        has_role = has_role or _ROLE_WRITTEN.search(text) is not None
    return found


def _judged(session: _Session, statement: str, after_guard: bool, has_role: bool) -> list[str]:
    upper = statement[:40].upper()
    if "sql_log_bin = " in statement:
        session.unlogged = "sql_log_bin = 0" in statement
    if upper == "BEGIN" or upper.startswith(("BEGIN /*", "START TRANSACTION")):
        session.in_transaction, session.guarded, session.wrote, session.raises_epoch = (
            True,
            False,
            "",
            False,
        )
        return []
    if _GUARD in statement:
        session.guarded = True
        return []
    if upper == "COMMIT":
        bad = bool(session.wrote) and not session.guarded and not session.raises_epoch and has_role
        wrote, session.in_transaction, session.wrote = session.wrote, False, ""
        return [wrote[:200]] if bad else []
    if upper == "ROLLBACK":
        session.in_transaction, session.wrote = False, ""
        return []
    written = _WRITES.match(statement)
    if written is None or session.unlogged or _CONFIRMED in statement:
        return []
    session.raises_epoch = session.raises_epoch or ("shard_counter SET leader_epoch" in statement)
    if session.in_transaction and written[1].upper() not in (
        "CREATE",
        "DROP",
        "ALTER",
        "RENAME",
        "TRUNCATE",
    ):
        session.wrote = session.wrote or statement
        return []
    return [] if after_guard or not has_role else [statement[:200]]


def _entries(log: str) -> Iterator[tuple[int, str, str]]:
    """``(connection, command, text)`` of each entry; a statement may have several lines."""
    current: tuple[int, str, list[str]] | None = None
    for line in log.split("\n"):
        if line.endswith(_STARTED):
            if current is not None:
                yield current[0], current[1], "\n".join(current[2])
            current = None
            yield 0, _STARTED, ""
        elif (entry := _ENTRY.match(line)) is not None:
            if current is not None:
                yield current[0], current[1], "\n".join(current[2])
            current = int(entry[1]), entry[2], [entry[3]]
        elif current is not None:
            current[2].append(line)
    if current is not None:
        yield current[0], current[1], "\n".join(current[2])


def unguarded_in(directory: Path) -> list[str]:
    """The same of the log of the server whose files are in ``directory``; it must have written
    something."""
    log = (directory / "data" / LOG_FILE).read_text(errors="replace")
    assert _OURS in log, "the general log has no connection of cellfeed: nothing was checked"
    return unguarded_writes(log)
