"""Whether a group's share in this process follows its logs: the reason of ``/readyz`` for triggers,
indexes and exports.

A share stands when it is behind, and none of the shards that are behind has moved for the limit of
followers. One shard that waits for its parked row, while others move, is no news of the process:
``cellfeed status`` shows it. A group that operators paused is not behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.progress import Watch

_NOT_MINE: Final = -1


class FollowerWatch:
    """Of one group. Used by one thread."""

    def __init__(self, group: str) -> None:
        self._watch = Watch(f"group {group}", "follower", is_idle=True)
        self._locations: dict[int, int] = {}
        """By shard that was behind at the last look."""

    def look(
        self, stands_still: str | None, progress: Mapping[int, Progress], heads: Mapping[int, Head]
    ) -> None:
        """``stands_still``: why the whole share waits. ``heads``: of all shards."""
        behind = {
            shard: each.location
            for shard, each in progress.items()
            if shard in heads and each.location < heads[shard].watermark
        }
        before, self._locations = self._locations, behind
        if stands_still is not None:
            self._watch.waits(stands_still)
        elif not behind:
            self._watch.idle()
        elif before.keys() - behind.keys() or any(
            behind.get(shard, _NOT_MINE) > location for shard, location in before.items()
        ):
            self._watch.moved()
        else:
            self._watch.waits(progress[next(iter(behind))].because)

    def pause(self) -> None:
        """Operators have the group wait."""
        self._watch.idle()

    def close(self) -> None:
        """The share has been given back."""
        self._watch.close()
