"""Where the work on a shard is, under its claim: saved in the coordination, or kept in the
datastore while that is away.

Saving is fenced: an owner that was overtaken is refused (StaleWriter). Crash points of a save:

    in the save                 one commit: the old offset or the new one
    with entries (parking)      one commit holds the parked cell and the offset past it: both or
                                neither (I14)
    paused and overtaken        :meth:`Position.make_sure` asks the coordinator before the next cell
                                once the lease may have run out; a save on its way is refused
    coordination away           the offset is kept in the datastore, in one commit again,
                                and saved when coordination is back, see ``kept_offsets.py``
    entries without an answer   they are kept here, and may come from the coordination once more
                                when it is back: at the latest when the shard is claimed again.
                                Until then parked cells must not be taken off their queue
                                (:attr:`Position.parking_is_unanswered`): they would be parked
                                again
    the datastore away too      it raises; nothing more is run before the save has succeeded, so a
                                death costs only the runs since the last save
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.triggers.shard.context import ShardContext
from cellfeed.store.errors import CellfeedError, OutcomeUnknown, StaleWriter, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare("trigger.before_save", "trigger.after_save")

SAVE_EVERY_S: Final = 0.2
"""Longest time between two saves while cells are run: runs of that time are repeated after a
crash."""

_SAVE_AWAITED_S: Final = 0.01
"""The same while somebody waits for the trigger: a save costs a commit."""

_SAVE_AGAIN_S: Final = 0.5
"""How soon an idle shard tries a failed save again."""


class Position:
    """See the module. Used by one thread at a time."""

    def __init__(self, context: ShardContext) -> None:
        self._group = context.trigger.group
        self._offsets = context.of_trigger.offsets
        self._awaited = context.of_trigger.store.awaited
        self._claim = context.claim
        self._membership = context.of_trigger.membership
        self._epoch = context.epoch
        self._saved = context.saved
        self._kept_offset = context.kept_offset
        self._progress = context.progress
        self._failed = False
        self._saved_at_s = time.monotonic()
        self._save_again_at_s = 0.0
        self.is_away = False
        """Whether the coordination was away at the last try to save."""
        self.parking_is_unanswered = False
        """Whether entries may be on their way that were kept here already. Over when the shard is
        claimed again."""
        self._progress.location = (
            self._kept_offset.start if self._kept_offset else max(0, self._saved)
        )

    @property
    def is_saved(self) -> bool:
        """Whether the coordination has the offset as it is now."""
        return self._progress.location == self._saved

    def is_due(self, *, lazily: bool = False) -> bool:
        """Whether there is an offset that could not be saved (``lazily``: or was not yet), and it
        is time to do it."""
        if self._progress.location == self._saved:
            return False
        due_at_s = (
            max(self._save_again_at_s, self._saved_at_s + SAVE_EVERY_S)
            if lazily and not self.is_awaited
            else self._save_again_at_s
        )
        return time.monotonic() > due_at_s

    def make_sure(self) -> None:
        """Raises StaleWriter when the shard is another worker's by now: after a pause of the whole
        process the lease may have run out unnoticed."""
        if self._membership.is_sure(self._epoch):
            return
        location = self._progress.location
        # Saving asks as well, and leaves the next owner nothing to run again.
        moved = {self._key: CommittedOffset(location)} if location != self._saved else {}
        try:
            self._offsets.commit_offsets(self._group, moved, claims=[self._claim])
        except StaleWriter:
            self._keep_unless_overtaken()
            raise
        except Unavailable as error:
            if self._kept_offset is None:
                raise
            if isinstance(error, OutcomeUnknown) and moved:
                # It may still be saved, later: the next owner must know that such an offset is
                # older than the one kept here.
                self._kept_offset.keep(location, failed=error)
            else:
                self._kept_offset.check()
        else:
            self._note_saved(location)

    def save_if_due(self) -> None:
        """As :meth:`save`, when the last one was ``SAVE_EVERY_S`` ago, or somebody waits."""
        every_s = _SAVE_AWAITED_S if self.is_awaited else SAVE_EVERY_S
        if time.monotonic() - self._saved_at_s > every_s:
            self.save()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the trigger (:mod:`cellfeed.store.waits.awaited`)."""
        return self._awaited.is_awaited(self._group)

    def save_what_failed(self) -> None:
        """As :meth:`save`, when the last one failed."""
        if self._failed:
            self.save()

    def save(self) -> None:
        """Saves the offset if it moved, or keeps it where coordination is away. Raises StaleWriter
        when the claim is void."""
        if self._progress.location == self._saved:
            return
        failpoint("trigger.before_save")
        self.save_with(self._progress.location, {})
        failpoint("trigger.after_save")

    def save_with(self, location: int, entries: Mapping[str, bytes | None]) -> None:
        """Saves an offset and entries of the state table, both or neither."""
        self._failed = True
        try:
            self._offsets.commit_offsets(
                self._group,
                {self._key: CommittedOffset(location)},
                claims=[self._claim],
                entries=entries,
            )
        except StaleWriter:
            if not entries:
                self._keep_unless_overtaken()
            raise
        except Unavailable as error:
            self.not_saved(location, entries, error)
        else:
            self.saved(location)

    def saved(self, location: int) -> None:
        """The coordination has this offset: it was saved here, or with those of other shards."""
        self._note_saved(location)
        # also behind cells of other columns, and when the obstacle to a save is over
        self._progress.because = f"came to {location - 1}"
        self.is_away = self._failed = False
        self._saved_at_s = time.monotonic()

    def not_saved(
        self, location: int, entries: Mapping[str, bytes | None], error: Unavailable
    ) -> None:
        """Keeps it in the datastore instead; raises the error where there is nothing to keep it
        for, and the next chunk tries to save first."""
        self.is_away = self._failed = True
        if self._kept_offset is None:
            raise error
        self._kept_offset.keep(location, entries, failed=error)
        self.parking_is_unanswered |= bool(entries) and isinstance(error, OutcomeUnknown)
        self._save_again_at_s = time.monotonic() + _SAVE_AGAIN_S
        self._progress.because = (
            f"came to {location}, which is kept here until it can be saved: {error}"
        )
        self._failed = False
        self._saved_at_s = time.monotonic()

    def keep(self) -> None:
        """Writes this run's location to the datastore, whether the coordination has it or not,
        unless another worker has begun on the shard."""
        if self._kept_offset is not None:
            with suppress(StaleWriter):
                self._kept_offset.keep(self._progress.location)

    @property
    def _key(self) -> tuple[str, int]:
        return self._claim.topic, self._claim.partition

    def _note_saved(self, location: int) -> None:
        if location != self._saved:
            self._saved = location
            if self._kept_offset is not None:
                self._kept_offset.saved(location)

    def _keep_unless_overtaken(self) -> None:
        """A claim may be void before its new owner has begun. Then that one need not run these
        cells again."""
        with suppress(CellfeedError):
            self.keep()
