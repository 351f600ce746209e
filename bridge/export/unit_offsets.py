"""The saved offsets of one unit: a mirror of the ends of its partitions, for status and lag tools.

An export believes its partition, so an offset may be behind, and some may be saved where others are
not. It is saved under the claims of the unit's shards: a save that is refused says that another
exporter has the unit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Final

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, TopicPartition
from cellfeed.bridge.export.limits import IDLE_SAVE_AGAIN_S, SAVE_EVERY_S
from cellfeed.bridge.export.resume import metadata_of
from cellfeed.bridge.export.taking_over import ExportContext, TakenOver
from cellfeed.bridge.triggers.offsets.gathered_saves import OFFSETS_IN_A_COMMIT_MAX
from cellfeed.store.errors import Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare("export.before_save", "export.after_save")

_log: Final = logging.getLogger("cellfeed.export")


class UnitOffsets:
    """See the module. ``epoch``: of the session in which the claims were made."""

    def __init__(
        self, context: ExportContext, unit: int, claims: Mapping[int, Claim], epoch: int
    ) -> None:
        self._context = context
        self._unit = unit
        self._shards: Sequence[int] = sorted(claims)
        self.claims = dict(claims)
        self.epoch = epoch
        self._claiming = threading.Lock()
        """A claim is void from the moment at which it is made again: a save under it just then
        would take the unit for lost."""
        self._unsaved: set[int] = set()
        """Shards that have moved since their offsets were saved."""
        self._saving: tuple[Future[None], Sequence[int]] | None = None
        """The save that is under way beside the export, and its shards."""
        self._save_at_s = 0.0
        self._failed_until_s = 0.0
        """Until when a save that failed is not tried again."""

    def claim_again(
        self, claim: Callable[[Collection[int]], Mapping[int, Claim]], epoch: int
    ) -> bool:
        """Continues in another session, which has this ``epoch``, if that can claim all shards;
        returns whether it could. Raises Unavailable."""
        with self._claiming:
            claims = claim(self._shards)
            self.claims.update(claims)
            if len(claims) < len(self._shards):
                return False
            self.epoch = epoch
            return True

    def check_claims(self) -> None:
        """Raises StaleWriter when a claim is void, Unavailable."""
        self._commit({}, self._shards)

    def moved(self, shards: Iterable[int]) -> None:
        """Notes that the offsets of these shards are to be saved."""
        self._unsaved.update(shards)

    @property
    def are_awaited(self) -> bool:
        """Whether there are offsets to be saved, and somebody waits for the export."""
        context = self._context
        return (
            bool(self._unsaved)
            and context.datastore.awaited.is_awaited(context.export.group)
            and time.monotonic() >= self._failed_until_s
        )

    def save_where_due(self, taken: TakenOver, threads: Executor) -> None:
        """As :meth:`save`, when the last one is long ago. One of ``threads`` does it, unless
        somebody waits for the export: to read the ends of thousands of partitions takes a cluster
        long, and cells that come meanwhile do not wait for it. While the coordination is away,
        exporting continues."""
        awaited = self.are_awaited
        if not awaited and (
            time.monotonic() < self._save_at_s
            if self._saving is None
            else not self._saving[0].done()
        ):
            return
        try:
            self._settle()
            if awaited:
                self.save(taken)
            elif self._unsaved and time.monotonic() >= self._save_at_s:
                save = self._snapshot(taken, are_seen=False)
                self._saving = threads.submit(save), sorted(self._unsaved)
                self._unsaved.clear()
        except Unavailable as error:
            self._save_at_s = self._failed_until_s = time.monotonic() + IDLE_SAVE_AGAIN_S
            _log.warning(
                "%s: the offsets of unit %d are not saved just now, exporting continues: %s",
                self._context.export.group,
                self._unit,
                error,
            )

    def save(self, taken: TakenOver, *, are_seen: bool = False) -> None:
        """Saves the offsets that have moved, once readers of commits see their records
        (``shown_ends.py``), ``are_seen``: as they do. Raises StaleWriter when a claim is void,
        Unavailable."""
        self._settle()
        if self._unsaved:
            self._snapshot(taken, are_seen=are_seen)()
            self._unsaved.clear()

    def _settle(self) -> None:
        """Waits for the save that is under way. Raises its error; its shards are unsaved then."""
        if self._saving is None:
            return
        (saved, shards), self._saving = self._saving, None
        try:
            saved.result()
        except BaseException:
            self._unsaved.update(shards)
            raise

    def _snapshot(self, taken: TakenOver, *, are_seen: bool) -> Callable[[], None]:
        """A save of the unsaved offsets as they are now: any thread may run it."""
        self._save_at_s = time.monotonic() + SAVE_EVERY_S
        context, moved = self._context, sorted(self._unsaved)
        offsets = {
            (context.datastore.name, shard): CommittedOffset(
                taken.locations[shard], -1, metadata_of(taken.exported[shard])
            )
            for shard in moved
        }
        ends = {shard: taken.ends[shard] for shard in moved}

        def save() -> None:
            if not are_seen:
                context.shown.wait(ends)
            failpoint("export.before_save")
            self._commit(offsets, moved)
            failpoint("export.after_save")

        return save

    def _commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], shards: Sequence[int]
    ) -> None:
        """Under the claims of these shards, some at a time. Each offset is a mirror of its own
        partition, so some may be saved where others are not."""
        context = self._context
        with self._claiming:
            for first in range(0, len(shards), OFFSETS_IN_A_COMMIT_MAX):
                some = shards[first : first + OFFSETS_IN_A_COMMIT_MAX]
                keys = [(context.datastore.name, shard) for shard in some]
                context.coordinator.commit_offsets(
                    context.export.group,
                    {key: offsets[key] for key in keys if key in offsets},
                    claims=[self.claims[shard] for shard in some],
                )
