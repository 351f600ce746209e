"""Running the parked cells of one shard again: those that are due, and behind them those that
wait for them.

Each try is counted beforehand (``recorded_attempts.py``), because a parked cell is one that has
failed before: it may be one that ends its process. A cell that has ended processes as often as its
policy allows is not tried again by itself, only when asked for by hand. Crash points:

    before the run              nothing happened but the count
    in the run                  its next owner finds the count, notes the try with the parked cell,
                                and does not repeat it by itself
    after the run, before it is taken off the queue     it runs again (at least once); no cell
                                                        behind it has begun
    in taking it off            one commit strikes the count off and takes it off the queue
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from cellfeed.bridge.triggers.parked.cell import ParkedCell, fronts
from cellfeed.bridge.triggers.retry import ProcessEnded
from cellfeed.bridge.triggers.shard.attempts import DONE, Attempts, Failed, Stopped
from cellfeed.bridge.triggers.shard.context import ShardContext
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import Trimmed

_ONE_TRY: Final = 1


class ParkedRetry:
    """Of one shard. Used by one thread at a time."""

    def __init__(self, context: ShardContext, attempts: Attempts) -> None:
        self._trigger = context.trigger
        self._store = context.of_trigger.store
        self._parked = context.of_trigger.parked
        self._claim = context.claim
        self._recorded = context.recorded
        self._attempts = attempts
        self._stop = context.stop

    def parked(self) -> list[ParkedCell]:
        """The shard's parked cells, by added_id."""
        return self._parked.of_partition(
            self._trigger.group, self._claim.topic, self._claim.partition
        )

    def drop_erased(self, cells: Iterable[ParkedCell]) -> None:
        """Takes those off the queue whose row was erased while they ran: their errors may quote it,
        and the erasure looked before they were there. A kill before this leaves it to the shard's
        next owner."""
        for cell in cells:
            if (stored := self._stored(cell)) is not None and is_erased(stored.body):
                self._parked.resolved(cell)

    def settle(self, location: int) -> None:
        """Deals with tries that earlier owners left behind on cells before ``location``: they were
        parked cells, or were done."""
        self.drop_erased(self.parked())
        behind = {
            added_id: recorded
            for added_id, recorded in self._recorded.left_behind().items()
            if added_id < location
        }
        parked = {cell.added_id: cell for cell in self.parked()} if behind else {}
        for added_id, recorded in behind.items():
            if (cell := parked.get(added_id)) is None:
                self._recorded.strike_off(added_id)
            else:
                self._parked.failed_again(
                    cell,
                    recorded.error_text(),
                    attempts=recorded.attempts,
                    ended=recorded.attempts,
                    also=self._recorded.parked(added_id),
                )
                self._recorded.struck_off(added_id)

    def run(self, only_asked: bool) -> int:
        """Tries parked cells again; how many ran. In the order of the log, and past a row key's
        first one only when that has run, where order is kept."""
        ran, cells = 0, self.parked()
        first = {cell.added_id for cell in fronts(cells)}
        failed_rows: set[str] = set()
        released_rows: set[str] = set()
        for cell in cells:
            if self._stop.is_set():
                break
            if cell.row_key in failed_rows or not (
                cell.added_id in first or cell.row_key in released_rows
            ):
                continue
            if not self._is_due(cell, only_asked):
                failed_rows.update([cell.row_key] if cell.in_order else [])
                continue
            result = self._run(cell)
            if isinstance(result, Stopped):
                break
            if isinstance(result, Failed):
                self._parked.failed_again(
                    cell,
                    result.error,
                    attempts=result.attempts,
                    ended=result.ended,
                    also=self._recorded.parked(cell.added_id),
                )
                self.drop_erased([cell])
                failed_rows.update([cell.row_key] if cell.in_order else [])
            else:
                ran += self._parked.resolved(cell, also=self._recorded.parked(cell.added_id))
                released_rows.add(cell.row_key)
            self._recorded.struck_off(cell.added_id)
        self._recorded.end()
        return ran

    def _is_due(self, cell: ParkedCell, only_asked: bool) -> bool:
        """A waiting cell that reaches the front is due at once."""
        if cell.is_behind or cell.retry_asked:
            return True
        return not only_asked and cell.ended < self._trigger.policy_for(ProcessEnded).attempts

    def _run(self, cell: ParkedCell) -> object:
        stored = self._stored(cell)
        if stored is None:
            return Failed(f"cell {cell.cell_id} is not in the log any more", _ONE_TRY)
        if not self._trigger.takes(stored):
            return DONE  # erased since it was parked: it is passed over, as it would be in the log
        # A waiting cell has not been tried: it has all its tries. A cell that failed before has one
        # now, and another one next time.
        return self._attempts.run(
            [stored],
            on_record=True,
            suspect=cell.ended > 0,
            attempts_max=None if cell.is_behind else _ONE_TRY,
            is_parked=True,
        )

    def _stored(self, cell: ParkedCell) -> StoredCell | None:
        try:
            found = self._store.engine.scan(cell.partition, cell.added_id, 1)
        except Trimmed:
            # by somebody who knew of it and did not mind: it stays parked, with this for its
            # error, until it is skipped
            return None
        if (
            not found
            or found[0].added_id != cell.added_id
            or found[0].row_key != UUID(cell.row_key).bytes
        ):
            return None
        return found[0]
