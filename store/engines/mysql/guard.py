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

import msgspec
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
from cellfeed.store.engines.mysql.replication import SEMI_SYNC_SETTINGS, confirm_by_minion
from cellfeed.store.engines.mysql.statements import commit_script, query, run_script
from cellfeed.store.errors import (
    DataDamaged,
    ForeignServer,
    ProtectData,
    StaleWriter,
    StorageUnavailable,
)
from cellfeed.store.failpoints import marked
from cellfeed.store.histories import is_same_history, refuse_other_history

ROLE_KEY: Final = "cluster/role"
"""The state entry with the cluster's role (:mod:`cellfeed.store.clusters.model.roles`)."""

CONFIRMED_KEY: Final = "cluster/confirmed"
"""The state entry that a master writes to learn that a minion has its binary log."""

DURABLE_SETTINGS: Final = {"sync_binlog": 1, "innodb_flush_log_at_trx_commit": 1}
"""The settings that a write checks on every master. They are the operator's: nothing sets them from
here."""

_WAITS: Final = " AND ".join(
    f"@@GLOBAL.{name} = {value}" for name, value in SEMI_SYNC_SETTINGS.items()
)

ATTEMPTS_MAX: Final = 5
PAUSE_S: Final = 0.01
"""A write that gave way to another one is tried again, after a random pause of at most so many
seconds for each try before."""


def guard_failed(error: BaseException) -> bool:
    """Whether a script ended at its guard, so that nothing of it was written. The same error of a
    statement behind a COMMIT (:meth:`Guard.after_commit`) is none of these."""
    return isinstance(error, StatementFailed) and error_code(error) == ER.SUBQUERY_NO_1_ROW


class _RoleTerms(msgspec.Struct, frozen=True):
    """The part of a role that a guard compares."""

    cluster: str
    epoch: int
    semi_sync: bool = False
    history_id: str = ""


class Guard:
    """The guard of the writes to one server. ``meta`` is the meta database, a checked name."""

    def __init__(self, server: MySqlServer, meta: str) -> None:
        self._server = server
        self._meta = meta
        self._role = f"SELECT value FROM {meta}.state_entry WHERE entry_key = '{ROLE_KEY}'"

    def condition(self, terms: WriteTerms | None) -> str:
        """The SQL expression that is true where a write under these terms is allowed."""
        server = [
            "@@GLOBAL.read_only = 0",
            *(f"@@GLOBAL.{name} = {value}" for name, value in DURABLE_SETTINGS.items()),
        ]
        if terms is None:
            return " AND ".join([*server, f"NOT EXISTS ({self._role})"])
        wanted = (
            f'"epoch":{terms.leader_epoch:d},"semi_sync":{"true" if terms.semi_sync else "false"}'
        )
        if terms.history_id:
            wanted += f',"history_id":"{terms.history_id}"'
        same = self._role.replace(
            "value", f"JSON_CONTAINS(CONVERT(value USING utf8mb4), '{{{wanted}}}')", 1
        )
        waiting = [_WAITS] if terms.semi_sync else []
        return " AND ".join([*server, f"({same}) = 1", *waiting])

    def statement(self, terms: WriteTerms | None, more: Sequence[str] = ()) -> str:
        """The SELECT that fails unless the condition holds, and the ``more`` that the caller
        asks."""
        rows = f"SELECT 1 FROM {self._meta}.state_revision UNION ALL SELECT 2 UNION ALL SELECT 3"
        return f"SELECT IF({' AND '.join([self.condition(terms), *more])}, 1, ({rows}))"

    def check_server(self, connection: Connection[Any], cluster: str, history_id: str) -> None:
        """Raises ForeignServer unless the server that the connection reaches is a node of this
        cluster and history."""
        [(value,)] = query(connection, f"SELECT ({self._role})")
        role = self._decoded(value)
        if role is None:
            raise ForeignServer(
                f"{self._server} reports no role: a restore or a copy to it is under way, or it is"
                " another server than it was"
            )
        if role.cluster != cluster or not is_same_history(role.history_id, history_id):
            raise ForeignServer(
                f"{self._server} is a server of cluster {role.cluster!r} in history"
                f" {role.history_id}, and {cluster!r} is in history {history_id}: another server"
                " has the node's address; name the node's own in the configuration"
            )

    def after_commit(self, terms: WriteTerms | None) -> list[str]:
        """Statements for the packet of a COMMIT that waits for a minion, behind it: a SELECT that
        fails where nobody makes it wait any more, so that it may have been answered without a
        minion."""
        if terms is None or not terms.semi_sync:
            return []
        rows = f"SELECT 1 FROM {self._meta}.state_revision UNION ALL SELECT 2 UNION ALL SELECT 3"
        return [f"SELECT IF({_WAITS}, 1, ({rows}))"]

    def explain(self, connection: Connection[Any], terms: WriteTerms | None) -> None:
        """Raises the error of the guard's condition that failed: StorageUnavailable, StaleWriter or
        ProtectData, nothing written. Returns where that has passed, or was mended: then the write
        is tried again."""
        durable = [f"@@GLOBAL.{name} + 0" for name in DURABLE_SETTINGS]
        [(read_only, value, *found)] = query(
            connection, f"SELECT @@GLOBAL.read_only + 0, ({self._role}), {', '.join(durable)}"
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
        role = self._decoded(value)
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
        script = ["BEGIN", *locks, self.statement(terms, more), *statements]

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

    def _decoded(self, value: bytes | None) -> _RoleTerms | None:
        try:
            return None if value is None else msgspec.json.decode(value, type=_RoleTerms)
        except msgspec.MsgspecError as error:
            raise DataDamaged(
                f"{self._server}: the state entry {ROLE_KEY!r} is no role: {error}"
            ) from error


def _mode(semi_sync: bool) -> str:
    return "semi-synchronous" if semi_sync else "asynchronous"
