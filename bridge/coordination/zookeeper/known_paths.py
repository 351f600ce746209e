"""Paths in ZooKeeper that exist as far as this process knows, so that a save is one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cellfeed.bridge.coordination.zookeeper.client import (
    ZooKeeperClient,
)

_KNOWN_PATHS_MAX: Final = 200_000
"""Paths that are remembered as existing (some 150 bytes each), so that a save is one round trip.
Beyond it they are looked up again."""


class KnownPaths:
    """A path that was deleted since is noticed when it is written."""

    def __init__(self, base: ZooKeeperClient) -> None:
        self._base = base
        self._known: set[str] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def add(self, paths: Iterable[str]) -> None:
        """They exist."""
        self._known.update(paths)

    def forget(self, paths: Iterable[str]) -> None:
        """Nothing is known of them."""
        self._known.difference_update(paths)

    def look_up(self, paths: Sequence[str]) -> None:
        """Learns which of the paths exist, and makes the folders of the others. Raises
        Unavailable."""
        if not paths:
            return
        if len(self._known) + len(paths) > _KNOWN_PATHS_MAX:
            self._known.clear()
        stats = self._base.stats(paths)
        self._known.update(
            path for path, stat in zip(paths, stats, strict=True) if stat is not None
        )
        for parent in {
            path.rpartition("/")[0] for path, stat in zip(paths, stats, strict=True) if stat is None
        }:
            self._base.ensure(parent)
