"""Buffered writes: a put goes first to the buffer table of other clusters, then to its own (design
§2.8).

    own cluster answers        its results; the copies are removed once its minions hold the cells.
    own master is away         the copies are accepted: ``buffered``. The cells cannot be read yet;
                               the drain puts them when the master is back, or a minion is promoted.
                               It removes them only when they are on the own cluster's minions.
    no other master answers    the put goes to the own master alone, as without a buffer.

The answer of a put when a cell was neither written nor buffered:

    ``failed``    no table took a copy, so certainly nothing was written, and nothing will be.
    ``unknown``   a copy was added, or may have been: the drain may write it, now or later. Putting
                  the cell again shows which.
    ``conflict``  the own log has another body, or refuses the row for good: so the drain can only
                  drop a copy, in any table.

Crash points of a put: after the copies, before the own put: the caller has no answer, the drain
puts the cells (``unknown`` became stored). After the own put: the drain finds the cells there and
removes the copies. A copy whose cell is stored with another body was never answered ``buffered``
(the caller got ``conflict``) and is dropped; an accepted one is kept and shown in the ledger as a
conflict, for a person to decide: nothing acknowledged is dropped. But a waiting cell of a row that
was erased meanwhile is dropped, accepted or not: its own log refuses it for good (E21).
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from cellfeed.store.background import SupervisedThread
from cellfeed.store.cells.cell import NewCell, Outcome, PutResult
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.engines.contract.buffer import BufferCount, BufferedCell, BufferTable
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    DictionaryLost,
    OutcomeUnknown,
    ProtectData,
    RowErased,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import BATCH_CELLS_MAX
from cellfeed.store.repeated_warnings import RepeatedWarning

declare(
    "buffer.after_copies",
    "buffer.after_own_put",
    "buffer.before_accept",
    "buffer.drain.after_put",
    "buffer.drain.before_remove",
)

_log = logging.getLogger("cellfeed.buffer")

DRAIN_EVERY_S: Final = 0.5
"""How often the drain looks at the buffers, in seconds."""

COPY_AGE_S: Final = 2.0
"""A copy younger than this may belong to a put that is under way; it is left alone."""

_DRAIN_CELLS: Final = 1_000
"""Cells that the drain puts in one transaction."""


class BufferedWriter:
    """Puts with copies on ``copies`` other clusters. ``tables``: each cluster's buffer table.
    ``write`` puts cells where their shards are. ``shard_of``: a cell's shard."""

    def __init__(
        self,
        tables: Mapping[str, BufferTable],
        write: Callable[[Sequence[NewCell]], list[PutResult]],
        shard_of: Callable[[NewCell], int],
        copies: int = 1,
        chance: random.Random | None = None,
    ) -> None:
        self._tables, self._write, self._shard_of = tables, write, shard_of
        self._copies = min(copies, len(tables) - 1)
        self._chance = chance or random.Random()
        self._lacking = RepeatedWarning(_log)

    def put(self, own: str, cells: Sequence[NewCell]) -> list[PutResult]:
        """As the engine's ``put``, for cells of the cluster ``own``. Raises only when no table has
        a copy, or may have one."""
        copies = self._copy(own, cells)
        failpoint("buffer.after_copies")
        try:
            results = self._write(cells)
        except CellfeedError as error:
            if not copies:
                raise
            results = [
                PutResult(Outcome.FAILED, self._shard_of(cell), error=error) for cell in cells
            ]
        failpoint("buffer.after_own_put")
        if copies:
            self._accept(own, copies, cells, results)
            self._drop_refused(own, copies, cells, results)
        return [self._uncertain(result, copies) for result in results] if copies else results

    def _copy(self, own: str, cells: Sequence[NewCell]) -> list[str]:
        """The clusters that have copies, those first that said so, then those that may have
        them."""
        others = [name for name in self._tables if name != own]
        self._chance.shuffle(others)
        kept_on, may_be_on = list[str](), list[str]()
        for name in others:
            if len(kept_on) == self._copies:
                break
            try:
                self._tables[name].add(own, cells)
            except CellfeedError as error:
                self._lacking.warn("no copy of a put for cluster %s on %s: %s", own, name, error)
                if not error.definite:
                    may_be_on.append(name)
            else:
                kept_on.append(name)
        return kept_on + may_be_on

    def _accept(
        self, own: str, copies: Sequence[str], cells: Sequence[NewCell], results: list[PutResult]
    ) -> None:
        """Has the tables answer for the cells that the own master did not take, of a group whose
        shards went different ways as well."""
        waiting = [
            index for index, result in enumerate(results) if isinstance(result.error, Unavailable)
        ]
        if waiting:
            failpoint("buffer.before_accept")
        for name in copies:
            if not waiting:
                return
            try:
                same = self._tables[name].accept(own, [cells[index] for index in waiting])
            except CellfeedError:
                continue
            for index in (index for index, is_same in zip(waiting, same, strict=True) if is_same):
                results[index] = PutResult(Outcome.BUFFERED, self._shard_of(cells[index]))
            waiting = [index for index, is_same in zip(waiting, same, strict=True) if not is_same]

    def _drop_refused(
        self,
        own: str,
        copies: Sequence[str],
        cells: Sequence[NewCell],
        results: Sequence[PutResult],
    ) -> None:
        refused = [cell for cell, result in zip(cells, results, strict=True) if _is_refused(result)]
        for name in copies if refused else ():
            with suppress(CellfeedError):  # the drain finds out otherwise, and drops the copy
                self._tables[name].remove_copies(own, refused)

    def _uncertain(self, result: PutResult, copies: Sequence[str]) -> PutResult:
        """A cell that is neither written nor buffered, nor can ever be written, may be written by
        the drain."""
        if result.error is None or _is_refused(result):
            return result
        why = (
            f"a copy may wait on {' or '.join(copies)}, from where it is written later:"
            f" {result.error}; put the same cells again to learn their fate"
        )
        return PutResult(Outcome.UNKNOWN, result.shard, error=OutcomeUnknown(why))


def _is_refused(result: PutResult) -> bool:
    """Whether the cell can never be written there: its row was erased, or its triple is stored,
    with another body or a damaged one."""
    return result.outcome is Outcome.CONFLICT or isinstance(
        result.error, (RowErased, DataDamaged, DictionaryLost)
    )


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


def buffer_of(cluster: Cluster) -> BufferTable:
    """The cluster's buffer table, on whichever node is master."""
    return _OnMaster(cluster)


class _OnMaster:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def add(self, owner: str, cells: Sequence[NewCell]) -> None:
        self._cluster.write(lambda engine, role: engine.buffer.add(owner, cells, role.terms))

    def accept(self, owner: str, cells: Sequence[NewCell]) -> list[bool]:
        return self._cluster.write(
            lambda engine, role: engine.buffer.accept(owner, cells, role.terms)
        )

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        return self._cluster.write(
            lambda engine, _: engine.buffer.waiting(owner, after_id, limit, older_than_s)
        )

    def remove(self, buffer_ids: Sequence[int]) -> None:
        self._cluster.write(lambda engine, role: engine.buffer.remove(buffer_ids, role.terms))

    def remove_copies(self, owner: str, cells: Sequence[NewCell]) -> None:
        self._cluster.write(
            lambda engine, role: engine.buffer.remove_copies(owner, cells, role.terms)
        )

    def remove_row(self, owner: str, row_key: bytes) -> None:
        self._cluster.write(
            lambda engine, role: engine.buffer.remove_row(owner, row_key, role.terms)
        )

    def mark_conflict(self, buffer_id: int, reason: str) -> None:
        self._cluster.write(
            lambda engine, role: engine.buffer.mark_conflict(buffer_id, reason, role.terms)
        )

    def counts(self) -> list[BufferCount]:
        return self._cluster.write(lambda engine, _: engine.buffer.counts())
