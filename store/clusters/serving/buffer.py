"""Buffered writes: a put goes first to the buffer table of other clusters, then to its own.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.engines.contract.buffer import BufferTable
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    DictionaryLost,
    OutcomeUnknown,
    RowErased,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.repeated_warnings import RepeatedWarning

declare("buffer.after_copies", "buffer.after_own_put", "buffer.before_accept")

_log = logging.getLogger("cellfeed.buffer")


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
