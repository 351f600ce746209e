"""The guard of a write as SQL: the questions to the server before the COMMIT, and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.semi_sync import SEMI_SYNC_SETTINGS

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


class GuardSql:
    """``meta`` is the meta database, a checked name."""

    def __init__(self, meta: str) -> None:
        self._meta = meta
        self.role = f"SELECT value FROM {meta}.state_entry WHERE entry_key = '{ROLE_KEY}'"
        """A SELECT of the server's own role."""
        self._fails = f"SELECT 1 FROM {meta}.state_revision UNION ALL SELECT 2 UNION ALL SELECT 3"

    def condition(self, terms: WriteTerms | None) -> str:
        """The SQL expression that is true where a write under these terms is allowed."""
        server = [
            "@@GLOBAL.read_only = 0",
            *(f"@@GLOBAL.{name} = {value}" for name, value in DURABLE_SETTINGS.items()),
        ]
        if terms is None:
            return " AND ".join([*server, f"NOT EXISTS ({self.role})"])
        wanted = (
            f'"epoch":{terms.leader_epoch:d},"semi_sync":{"true" if terms.semi_sync else "false"}'
        )
        if terms.history_id:
            wanted += f',"history_id":"{terms.history_id}"'
        same = self.role.replace(
            "value", f"JSON_CONTAINS(CONVERT(value USING utf8mb4), '{{{wanted}}}')", 1
        )
        waiting = [_WAITS] if terms.semi_sync else []
        return " AND ".join([*server, f"({same}) = 1", *waiting])

    def statement(self, terms: WriteTerms | None, more: Sequence[str] = ()) -> str:
        """The SELECT that fails unless the condition holds, and the ``more`` that the caller
        asks."""
        return f"SELECT IF({' AND '.join([self.condition(terms), *more])}, 1, ({self._fails}))"

    def after_commit(self, terms: WriteTerms | None) -> list[str]:
        """Statements for the packet of a COMMIT that waits for a minion, behind it: a SELECT that
        fails where nobody makes it wait any more, so that it may have been answered without a
        minion."""
        if terms is None or not terms.semi_sync:
            return []
        return [f"SELECT IF({_WAITS}, 1, ({self._fails}))"]
