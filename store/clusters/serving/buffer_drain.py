"""Puts the cells that wait in buffer tables into their own logs, in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cellfeed.store.background import SupervisedThread
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.engines.contract.buffer import BufferCount, BufferedCell, BufferTable
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    OutcomeUnknown,
    ProtectData,
    RowErased,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import BATCH_CELLS_MAX

_log = logging.getLogger("cellfeed.buffer")

declare("buffer.drain.after_put", "buffer.drain.before_remove")

DRAIN_EVERY_S: Final = 0.5
"""How often the drain looks at the buffers, in seconds."""

COPY_AGE_S: Final = 2.0
"""A copy younger than this may belong to a put that is under way; it is left alone."""

_DRAIN_CELLS: Final = 1_000
"""Cells that the drain puts in one transaction."""


class BufferDrain:
    """The background job: every worker may run one; two at once do the same puts, which are
    idempotent. ``cluster_of``: where a shard is now. A cell goes there, whichever cluster it was
    buffered for: its shard may have moved."""

    def __init__(
        self,
        tables: Mapping[str, BufferTable],
        cluster_of: Callable[[int], Cluster],
        shard_of: Callable[[NewCell], int],
    ) -> None:
        self._tables, self._cluster_of, self._shard_of = tables, cluster_of, shard_of
        self._stop = threading.Event()
        self._thread = SupervisedThread("buffer-drain", self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def counts(self) -> dict[str, list[BufferCount] | str]:
        """The ledger: per cluster the counts of its buffer table, by owner; the reason where it
        cannot be read."""
        found: dict[str, list[BufferCount] | str] = {}
        for name, table in self._tables.items():
            try:
                found[name] = table.counts()
            except CellfeedError as error:
                found[name] = str(error)
        return found

    def drain_once(self, older_than_s: float = COPY_AGE_S) -> int:
        """Goes through all tables once; how many cells were removed. A cluster that is away is left
        for the next time."""
        removed = 0
        for where, table in self._tables.items():
            try:
                owners = [count.owner for count in table.counts()]
            except Unavailable as error:
                _log.info("the buffer of %s waits: %s", where, error)
                continue
            for owner in owners:
                try:
                    removed += self._drain(table, owner, older_than_s)
                except Unavailable as error:
                    _log.info("the buffer of %s for %s waits: %s", where, owner, error)
                except CellfeedError as error:
                    # The others are still drained.
                    _log.error("the buffer of %s for %s cannot be drained: %s", where, owner, error)
        return removed

    def forget_row(self, row_key: bytes) -> None:
        """Removes the cells of an erased row from every cluster's buffer, for any owner: the row's
        shard may have moved. Raises OutcomeUnknown when one of them does not answer."""
        silent = []
        for where, table in self._tables.items():
            try:
                for owner in self._tables:
                    if owner != where:
                        table.remove_row(owner, row_key)
            except Unavailable as error:
                silent.append(f"{where}: {error}")
        if silent:
            raise OutcomeUnknown(
                "the row is erased, but copies of its puts may still wait on other clusters:"
                f" {'; '.join(silent)}"
            )

    def _run(self) -> None:
        while not self._stop.wait(DRAIN_EVERY_S):
            self.drain_once()

    def _drain(self, table: BufferTable, owner: str, older_than_s: float) -> int:
        removed = after_id = 0
        while batch := table.waiting(
            owner, after_id, min(_DRAIN_CELLS, BATCH_CELLS_MAX), older_than_s
        ):
            after_id = batch[-1].buffer_id
            by_cluster: dict[Cluster, list[BufferedCell]] = {}
            for waiting in batch:
                by_cluster.setdefault(self._cluster_of(self._shard_of(waiting.cell)), []).append(
                    waiting
                )
            for own, some in by_cluster.items():
                removed += self._put_again(table, own, some)
        return removed

    def _put_again(self, table: BufferTable, own: Cluster, batch: Sequence[BufferedCell]) -> int:
        # Found or written, each cell has its place in the own log now; it is safe there once a
        # minion holds that place.
        results = own.put([waiting.cell for waiting in batch])
        failpoint("buffer.drain.after_put")
        for waiting, result in zip(batch, results, strict=True):
            if result.outcome is Outcome.CONFLICT or isinstance(
                result.error, (DataDamaged, ProtectData)
            ):
                self._conflict(table, waiting, result)
        erased = [
            waiting.buffer_id
            for waiting, result in zip(batch, results, strict=True)
            if isinstance(result.error, RowErased)
        ]
        own.look()
        replicated = own.replicated()
        safe = [
            waiting.buffer_id
            for waiting, result in zip(batch, results, strict=True)
            if result.acknowledged
            and result.shard is not None
            and result.added_id is not None
            and result.added_id < replicated.get(result.shard, 0)
        ]
        failpoint("buffer.drain.before_remove")
        table.remove(safe + erased)
        return len(safe) + len(erased)

    def _conflict(self, table: BufferTable, waiting: BufferedCell, result: PutResult) -> None:
        if waiting.accepted:
            _log.error("a buffered cell cannot be written: %s", result.error)
            table.mark_conflict(waiting.buffer_id, str(result.error))
        else:
            # Only while nobody was answered ``buffered``, which may have come since it was read;
            # then the next round finds it accepted.
            table.remove_copies(waiting.owner, [waiting.cell])
