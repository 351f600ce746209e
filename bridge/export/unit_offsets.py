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

    def save_where_due(self, taken: TakenOver) -> None:
        """As :meth:`save`, when the last one is long ago. While the coordination is away, exporting
        continues."""
        if time.monotonic() < self._save_at_s and not self.are_awaited:
            return
        try:
            self.save(taken)
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
        self._save_at_s = time.monotonic() + SAVE_EVERY_S
        if not self._unsaved:
            return
        context, moved = self._context, sorted(self._unsaved)
        offsets = {
            (context.datastore.name, shard): CommittedOffset(
                taken.locations[shard], -1, metadata_of(taken.exported[shard])
            )
            for shard in moved
        }
        if not are_seen:
            context.shown.wait({shard: taken.ends[shard] for shard in moved})
        failpoint("export.before_save")
        self._commit(offsets, moved)
        failpoint("export.after_save")
        self._unsaved.clear()

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
