"""The ends of all logs as one process follows them: the cost of a look grows with the changes since
the last.

Two invariants, after each :meth:`FollowedHeads.look`. Every cell that any process committed before
the look began, and that may be read, is below the watermark in :attr:`FollowedHeads.heads`. Each
look returns the shards whose heads differ from those of the look before. So a worker that acts on
every returned shard misses nothing:

    a wake-up is lost           the next look comes after a polling interval
    a commit during a look      it is in this look or in the next one (E28)
    a look that fails           it changes nothing here: the next one returns all of it
    another process writes      each look asks the store, not this process
    a restart                   the first look returns every shard
    a shard that moves          a worker visits each shard that it begins, changed or not
    a restore                   the store refuses this process, which ends
"""

from __future__ import annotations

from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head, changed_since
from cellfeed.store.limits import ADDED_ID_MAX


class FollowedHeads:
    """See the module. One thread looks; any thread may read :attr:`heads`, which a look changes in
    place."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._mark: object | None = None
        self._unshown: set[int] = set()
        self.heads: dict[int, Head] = {}
        """By shard; empty before the first look."""

    def look(self) -> dict[int, Head]:
        """The heads that changed since the last look, all at the first. Raises CellfeedError."""
        found, self._mark = self._engine.heads_since(self._mark)
        changed = changed_since(self.heads, found)
        self.heads.update(changed)
        for shard, head in changed.items():
            if head.watermark < head.next_added_id < ADDED_ID_MAX:
                self._unshown.add(shard)
            else:
                self._unshown.discard(shard)
        return changed

    def watermark(self, shard: int) -> int:
        """As far as the shard's log was looked at; 0 before the first look. In any thread."""
        head = self.heads.get(shard)
        return 0 if head is None else head.watermark

    @property
    def awaits_minions(self) -> bool:
        """Whether committed cells are not shown yet. A minion has them in a millisecond or two, and
        no wake-up reports it."""
        return bool(self._unshown)
