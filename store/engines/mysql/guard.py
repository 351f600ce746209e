"""The guard: every write to a MySQL master is one transaction that asks the server, behind its
locks and before its COMMIT, whether it may be acknowledged.

    takes writes    the server is not read-only: a fence binds privileged accounts, too
    durable         a commit is on disk before it is acknowledged: ``DURABLE_SETTINGS``. An engine
                    checks them when it opens, and a server may restart with others after that
    role            the server's own role has the leader epoch, the replication mode and the history
                    of the write's terms; a write without terms needs a server without a role
    minions         where the role is semi-synchronous, a commit waits for a minion and never falls
                    back, and a minion has all that was there before: ``SEMI_SYNC_SETTINGS``

The guard is a SELECT that fails, and so ends the packet that it is in, unless all of it holds. Then
nothing was written, and :meth:`Guard.explain` finds the reason: it raises it, or mends the settings
of semi-synchronous replication, and the caller tries again. A server that restarts forgets these
settings, and its own configuration may have others, so each write asks; also one that finds all of
it there and writes nothing, for its answer is an acknowledgement, too.

Between the guard and the COMMIT the answer holds: a fence and a restart end the connection, and the
transaction with it. Cells, trims and erasures ask in the SELECT that locks their counters. All
others send the guard in the packet of their statements.

One thing a COMMIT may meet while it waits for a minion: somebody who switches semi-synchronous
replication off by hand. The server then answers well although no minion has the transaction. So a
second SELECT follows the COMMIT in its packet (:meth:`Guard.after_commit`). Where it fails, the
outcome is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import uniform
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import (
    StatementFailed,
    commit_failed,
    error_code,
    failed,
    worth_another_try,
)
from cellfeed.store.engines.mysql.guard_sql import (
    CONFIRMED_KEY,
    DURABLE_SETTINGS,
    GuardSql,
)
from cellfeed.store.engines.mysql.role_terms import decoded
from cellfeed.store.engines.mysql.semi_sync import confirm_by_minion
from cellfeed.store.engines.mysql.statements import BEGIN, commit_script, query, run_script
from cellfeed.store.errors import (
    ProtectData,
    StaleWriter,
    StorageUnavailable,
)
from cellfeed.store.failpoints import marked
from cellfeed.store.histories import refuse_other_history

ATTEMPTS_MAX: Final = 5
PAUSE_S: Final = 0.01
"""A write that gave way to another one is tried again, after a random pause of at most so many
seconds for each try before."""


def guard_failed(error: BaseException) -> bool:
    """Whether a script ended at its guard, so that nothing of it was written. The same error of a
    statement behind a COMMIT (:meth:`Guard.after_commit`) is none of these."""
    return isinstance(error, StatementFailed) and error_code(error) == ER.SUBQUERY_NO_1_ROW


class Guard(GuardSql):
    """The guard of the writes to one server. ``meta`` is the meta database, a checked name."""

    def __init__(self, server: MySqlServer, meta: str) -> None:
        super().__init__(meta)
        self._server = server

    def explain(self, connection: Connection[Any], terms: WriteTerms | None) -> None:
        """Raises the error of the guard's condition that failed: StorageUnavailable, StaleWriter or
        ProtectData, nothing written. Returns where that has passed, or was mended: then the write
        is tried again."""
        durable = [f"@@GLOBAL.{name} + 0" for name in DURABLE_SETTINGS]
        [(read_only, value, *found)] = query(
            connection, f"SELECT @@GLOBAL.read_only + 0, ({self.role}), {', '.join(durable)}"
        )
        if int(read_only):
            raise StorageUnavailable(f"{self._server}: nothing written: it is read-only")
        for (name, wanted), each in zip(DURABLE_SETTINGS.items(), found, strict=True):
            if int(each) != wanted:
                raise StorageUnavailable(
                    f"{self._server}: nothing written: {name} is {int(each)}, so a crash of the"
                    f" machine would lose commits; `SET GLOBAL {name} = {wanted}`, and set it in"
                    " the server's configuration file"
                )
        role = decoded(self._server, value)
        if terms is None:
            if role is not None:
                raise ProtectData(
                    f"{self._server}: nothing written: it serves a cluster, and the write has no"
                    " leader epoch; write through the cluster"
                )
            return
        if role is None:
            raise StorageUnavailable(
                f"{self._server}: nothing written: it has no role: a restore or a copy to it is"
                " under way"
            )
        refuse_other_history(
            f"{self._server}: nothing written: it", role.history_id, "the write", terms.history_id
        )
        if (role.epoch, role.semi_sync) != terms[:2]:
            raise StaleWriter(
                f"{self._server}: nothing written: its cluster is in leader epoch {role.epoch}"
                f" ({_mode(role.semi_sync)}), the write came with {terms.leader_epoch}"
                f" ({_mode(terms.semi_sync)})"
            )
        if terms.semi_sync:
            try:
                # A row of its own: it is locked until a minion has it, and nobody should wait for
                # that.
                confirm_by_minion(
                    connection,
                    f"REPLACE INTO {self._meta}.state_entry VALUES ('{CONFIRMED_KEY}', UUID(), 0)",
                )
            except (pymysql.err.MySQLError, OSError) as error:
                raise failed(
                    self._server,
                    error,
                    "nothing written, no minion has confirmed the master since its restart or"
                    " promotion",
                ) from error

    def settle(self, connection: Connection[Any], terms: WriteTerms | None) -> None:
        """Returns when a write under these terms is allowed, for a caller that begins a long
        one. Raises as :meth:`explain`."""
        for _ in range(ATTEMPTS_MAX):
            [(passes,)] = query(connection, f"SELECT IF({self.condition(terms)}, 1, 0)")
            if int(passes):
                return
            self.explain(connection, terms)
        raise self._never_passed()

    def commit(
        self,
        statements: Sequence[str],
        terms: WriteTerms | None,
        *,
        locks: Sequence[str] = (),
        more: Sequence[str] = (),
        explain_more: Callable[[Connection[Any]], None] = lambda _: None,
        unless_there: bool = False,
    ) -> bool:
        """One transaction in one packet: the ``locks``, the guard, the statements, the COMMIT.
        ``explain_more`` raises the error that ``more`` stands for. False, nothing written, where a
        key is there already and the caller says ``unless_there``. Raises StorageUnavailable and
        StaleWriter (nothing written), OutcomeUnknown."""
        written = []
        script = [BEGIN, *locks, self.statement(terms, more), *statements]

        def write(connection: Connection[Any]) -> bool:
            try:
                commit_script(connection, script, self.after_commit(terms))
            except (pymysql.err.MySQLError, OSError) as error:
                if error_code(error) == ER.DUP_ENTRY and unless_there:
                    query(connection, "ROLLBACK")
                    return True
                if not guard_failed(error):
                    raise commit_failed(self._server, error) from error
                query(connection, "ROLLBACK")
                self.explain(connection, terms)
                explain_more(connection)
                return False
            written.append(True)
            return True

        self.until_it_passes(write)
        return bool(written)

    @marked("cas.alter")
    def alter(self, connection: Connection[Any], statement: str, terms: WriteTerms | None) -> None:
        """A statement about tables, which is a transaction by itself, behind the guard in its
        packet. Raises StorageUnavailable and StaleWriter, nothing done, or the driver's errors."""

        def run(connection: Connection[Any]) -> bool:
            try:
                run_script(connection, [self.statement(terms), statement])
            except pymysql.err.MySQLError as error:
                if error_code(error) != ER.SUBQUERY_NO_1_ROW:
                    raise
                self.explain(connection, terms)
                return False
            return True

        for _ in range(ATTEMPTS_MAX):
            if run(connection):
                return
        raise self._never_passed()

    @marked("cas.guard")
    def until_it_passes(self, write: Callable[[Connection[Any]], bool]) -> None:
        """Calls ``write`` until it says that the guard held, and again where it gave way to another
        transaction. Errors of ``write`` pass through."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                with self._server.connection() as connection:
                    if write(connection):
                        return
            except StorageUnavailable as error:
                if attempt == ATTEMPTS_MAX or not worth_another_try(error):
                    raise
                time.sleep(uniform(0, PAUSE_S * attempt))
        raise self._never_passed()

    def _never_passed(self) -> StorageUnavailable:
        return StorageUnavailable(
            f"{self._server}: nothing written: its role or its settings change all the time; try"
            " again"
        )


def _mode(semi_sync: bool) -> str:
    return "semi-synchronous" if semi_sync else "asynchronous"
