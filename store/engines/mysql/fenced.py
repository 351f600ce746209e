"""Transactions on a MySQL master that are fenced as a put is: trims, erasures, rewritten bodies.

Each begins by locking the shard's counter row behind the guard
(:mod:`cellfeed.store.engines.mysql.locked_counters`). So no put is under way in the shard, and the
writer's terms are those of the master.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import uniform
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection

from cellfeed.store.engines.mysql.errors import commit_failed, worth_another_try
from cellfeed.store.engines.mysql.locked_counters import ATTEMPTS_MAX, PAUSE_S
from cellfeed.store.engines.mysql.shard_statements import ShardStatements
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ShardMoving, StorageUnavailable

T = TypeVar("T")


class FencedStatements(ShardStatements):
    """See the module."""

    @property
    def _counter_table(self) -> str:
        return f"{self._meta}.shard_counter"

    def _tried_again(self, once: Callable[[], T]) -> T:
        """The result of one transaction, begun again while the server says that it may succeed
        later. Raises StorageUnavailable (nothing done) after ``ATTEMPTS_MAX``."""
        for attempt in range(1, ATTEMPTS_MAX):
            try:
                return once()
            except StorageUnavailable as error:
                if not worth_another_try(error):
                    raise
                time.sleep(uniform(0, PAUSE_S * attempt))
        return once()

    def _refuse_while_moving(self, connection: Connection[Any], shard: int, what: str) -> None:
        """Raises ShardMoving, and ends the transaction, while a move copies the shard: the copy may
        have its bodies already. ``what``: the beginning of the message, which says that the call
        did nothing."""
        [(copied_to,)] = query(
            connection,
            f"SELECT copied_to FROM {self._counter_table} WHERE shard = {shard:d} FOR UPDATE",
        )
        if copied_to:
            query(connection, "ROLLBACK")
            raise ShardMoving(
                f"{self._server}: {what}: shard {shard} is being moved to cluster"
                f" {copied_to.decode()}; try again when it has come there, or take the move back:"
                f" cellfeed shard rollback --shard {shard}"
            )

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Raises the outcome of a COMMIT that failed: StorageUnavailable (nothing done) or
        OutcomeUnknown."""
        try:
            yield
        except (pymysql.err.MySQLError, OSError) as error:
            raise commit_failed(self._server, error) from error
