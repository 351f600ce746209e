"""The commits of one loader, and the addition whose outcome is not known yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from enum import Enum
from typing import Final

from cellfeed.consumers.lake.appending import Appending, Outcome, refuse_other_source
from cellfeed.consumers.lake.cell_columns import CellColumns
from cellfeed.consumers.lake.contract import Addition, LakeTable
from cellfeed.consumers.lake.open_table import Place, make_lake_table, stage
from cellfeed.consumers.lake.positions import Positions
from cellfeed.consumers.lake.progress import LakeProgress
from cellfeed.consumers.lake.source import LogSource
from cellfeed.consumers.lake.typed.following import TypedTables
from cellfeed.consumers.lake.waiting_rows import Sealed, WaitingRows
from cellfeed.store.errors import NotFound, Unavailable

_log = logging.getLogger("cellfeed.consumers.lake")

RETRY_S: Final = 1.0
"""Pause after the source or the catalog did not answer, seconds."""


class Committed(Enum):
    """``NOTHING``: no rows wait. ``NOT_NOW``: rows wait on, for the catalog or the source does not
    answer. ``OVERTAKEN``: the rows are given up, for another loader commits these shards."""

    NOTHING = "nothing"
    LANDED = "landed"
    NOT_NOW = "not now"
    OVERTAKEN = "overtaken"


class Commits:
    """Used by the loader's thread. Makes the table when the source first reports its id."""

    def __init__(
        self,
        place: Place,
        source: LogSource,
        progress: LakeProgress,
        typed: TypedTables | None = None,
    ) -> None:
        self._typed = typed
        self._rows: CellColumns | None = None
        self._place = place
        self._source = source
        self._progress = progress
        self._table: LakeTable | None = None
        self._pending: Appending | None = None
        self._not_before = 0.0

    @property
    def is_pending(self) -> bool:
        """Whether an addition is staged whose outcome is not known."""
        return self._pending is not None

    def positions(self) -> Positions | None:
        """The table's. None when the source or the catalog does not answer; raises ProtectData for
        a table of another source."""
        if time.monotonic() < self._not_before:
            return None
        try:
            if self._table is None:
                self._table = make_lake_table(self._place, self._source.ask())
            state = self._table.look()
            refuse_other_source(self._table.name, state.source, self._source.ask())
            positions = state.positions
        except (Unavailable, NotFound) as error:
            self._wait(str(error))
            return None
        self._progress.trouble = ""
        self._note(positions)
        return positions

    def commit(self, waiting: WaitingRows) -> Committed:
        """Commits the addition of before, or all waiting rows. Raises OSError of the disk: nothing
        was lost, a new loader resumes. Raises ProtectData for a table of another source."""
        if time.monotonic() < self._not_before:
            return Committed.NOT_NOW
        table = self._table
        if table is None or (self._pending is None and not waiting.count):
            return Committed.NOTHING
        try:
            if self._pending is None:
                # Asked after the rows were read: they are of the log that has this id.
                source, sealed = self._source.ask(), waiting.seal()
                self._pending = Appending(table, _staged(table, sealed, source))
                self._rows = sealed.rows
            outcome = self._pending.run()
        except (Unavailable, NotFound) as error:
            self._wait(str(error))
            return Committed.NOT_NOW
        addition, self._pending = self._pending.addition, None
        rows, self._rows = self._rows, None
        self._progress.trouble = ""
        if outcome is Outcome.OVERTAKEN:
            self._progress.overtaken += 1
            _log.warning("another loader commits these shards of %s too", table.name)
            return Committed.OVERTAKEN
        self._progress.rows += addition.rows
        self._progress.files += len(addition.files)
        self._progress.bytes += sum(each.bytes for each in addition.files)
        self._progress.commits += 1
        self._note(addition.ends)
        if self._typed is not None and rows is not None:
            self._typed.follow(addition.starts, addition.ends, rows.table(), addition.source)
        return Committed.LANDED

    def catch_up(self, shards: Sequence[int]) -> bool:
        """One step of the typed tables that are behind; True while there are more."""
        if self._typed is None or self._table is None or time.monotonic() < self._not_before:
            return False
        try:
            return self._typed.catch_up(self._table, shards, self._source.ask())
        except (Unavailable, NotFound) as error:
            self._wait(str(error))
            return True

    def abandon(self) -> None:
        """Gives the addition of unknown outcome up. It may still happen: then the next one finds
        the positions moved."""
        self._pending = self._rows = None

    def _note(self, positions: Positions) -> None:
        self._progress.next_offsets.update(
            {shard: each.next_offset for shard, each in positions.items()}
        )

    def _wait(self, trouble: str) -> None:
        if trouble != self._progress.trouble:
            _log.warning("no commit just now: %s", trouble)
        self._progress.trouble = trouble
        self._not_before = time.monotonic() + RETRY_S


def _staged(table: LakeTable, sealed: Sealed, source: str) -> Addition:
    return Addition(
        source, stage(table, sealed.rows), sealed.starts, sealed.ends, sealed.rows.newest_us
    )
