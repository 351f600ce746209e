"""Semi-synchronous replication of a MariaDB master: a commit waits for a minion, and never falls
back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.locks import LOCK_FREED_S
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import StorageUnavailable

SEMI_SYNC_TIMEOUT_MS: Final = 315_360_000_000
"""How long a semi-synchronous commit waits for a minion before the server falls back to
asynchronous commits: ten years. After one fallback all later commits are asynchronous, so it must
outlast not the callers but the longest time without a minion."""

SEMI_SYNC_CONFIRMED_MS: Final = SEMI_SYNC_TIMEOUT_MS + 1
"""The same on a master of whose binary log a minion has all that was there before: it is set last,
and a restart forgets it. No configuration file should have it."""

SEMI_SYNC_SETTINGS: Final = {
    "rpl_semi_sync_master_wait_no_slave": 1,
    "rpl_semi_sync_master_wait_point": "'AFTER_SYNC'",
    "rpl_semi_sync_master_timeout": SEMI_SYNC_CONFIRMED_MS,
    "rpl_semi_sync_master_enabled": 1,
}
"""The settings that a write checks on a master whose commits wait for a minion. Without
``wait_no_slave`` the server falls back as soon as the last minion leaves."""

_SETTINGS_LOCK: Final = "cellfeed-semi-sync"


def set_semi_sync(server: MySqlServer, *, master: bool, wanted: bool) -> None:
    """Semi-synchronous replication as master, or as minion; for the connection of a minion it
    counts from the next START SLAVE on."""
    if wanted and master:
        with server.connection() as connection:
            wait_for_minions(connection)
    if wanted and not master:
        server.rows("SET GLOBAL rpl_semi_sync_slave_enabled = 1")
    if not (wanted and master):
        server.rows("SET GLOBAL rpl_semi_sync_master_enabled = 0")


def wait_for_minions(connection: Connection[Any]) -> None:
    """From now on this server acknowledges a commit, and shows it, only once a minion has received
    it; it never falls back to less. Raises StorageUnavailable while another connection sets this.
    """
    with _settings_lock(connection):
        _begin_to_wait(connection)


def confirm_by_minion(connection: Connection[Any], commit: str) -> None:
    """As :func:`wait_for_minions`, and returns when a minion has all of the server's binary log.

    After a crash a master may hold commits that no minion received: recovery ends them. An answer
    about them (``exists``, a compare-and-set) would acknowledge a commit that a promotion can lose.
    So ``commit``, a statement that writes, waits for a minion first, and no guard holds before
    that.

    Crash points: a connection that ends anywhere in here leaves the settings unconfirmed, and the
    next write begins again. Its lock ends with its COMMIT, so two of them never overlap.
    """
    with _settings_lock(connection):
        if has_settings(connection, SEMI_SYNC_SETTINGS):
            return
        _begin_to_wait(connection)
        query(connection, commit)
        query(connection, f"SET GLOBAL rpl_semi_sync_master_timeout = {SEMI_SYNC_CONFIRMED_MS}")


@contextmanager
def _settings_lock(connection: Connection[Any]) -> Iterator[None]:
    """One connection at a time: switching off lets commits go that wait for a minion."""
    [(got,)] = query(connection, f"SELECT GET_LOCK('{_SETTINGS_LOCK}', {LOCK_FREED_S})")
    if got is None or not int(got):
        raise StorageUnavailable(
            "nothing written: after a restart or a promotion the master still waits for a minion;"
            " try again when one follows it"
        )
    yield
    query(connection, f"SELECT RELEASE_LOCK('{_SETTINGS_LOCK}')")


def _begin_to_wait(connection: Connection[Any]) -> None:
    """A server that waits by other settings may have fallen back, or may do so during a commit that
    is under way: switching off and on again ends both. No guard has let such a commit through."""
    waiting = {**SEMI_SYNC_SETTINGS, "rpl_semi_sync_master_timeout": SEMI_SYNC_TIMEOUT_MS}
    if has_settings(connection, waiting) or has_settings(connection, SEMI_SYNC_SETTINGS):
        return
    query(connection, "SET GLOBAL rpl_semi_sync_master_enabled = 0")
    for name, value in waiting.items():
        query(connection, f"SET GLOBAL {name} = {value}")


def has_settings(connection: Connection[Any], settings: Mapping[str, object]) -> bool:
    [found] = query(
        connection,
        "SELECT " + ", ".join(f"@@GLOBAL.{name} = {value}" for name, value in settings.items()),
    )
    return all(int(each) for each in found)
