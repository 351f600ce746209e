"""Reading group offsets from ZooKeeper: values count only if the chroot is this datastore's before
and after they were read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cellfeed.bridge.coordination.contract import CommittedOffset, TopicPartition
from cellfeed.bridge.coordination.zookeeper.client import (
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.entries import TRIES_MAX
from cellfeed.bridge.coordination.zookeeper.offset_values import committed_offset
from cellfeed.bridge.coordination.zookeeper.paths import (
    Paths,
    unquoted,
)
from cellfeed.bridge.coordination.zookeeper_owner import ChrootOwner, Compared
from cellfeed.store.errors import (
    Unavailable,
)

OWNER_CHANGES: Final = "whose the chroot is changes, or ZooKeeper is connected again, all the time"


class OffsetReads:
    """May be used by any number of threads."""

    def __init__(self, base: ZooKeeperClient, paths: Paths, owner: ChrootOwner) -> None:
        self._base = base
        self._paths = paths
        self._owner = owner

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """As :meth:`cellfeed.bridge.coordination.contract.Offsets.fetch_offsets`."""
        for _ in range(TRIES_MAX):
            compared = self._owner.compared()
            found = self._fetch(group, partitions)
            if self._is_still(compared):
                return found
        raise Unavailable(f"the offsets of group {group!r} could not be read: {OWNER_CHANGES}")

    def _fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        wanted = self.listed(self._paths.offsets(group)) if partitions is None else list(partitions)
        if not wanted:
            return {}
        detailed = self._base.stats([self._paths.details(group)], newest=True)[0] is not None
        paths = [self._paths.offset(group, *key) for key in wanted]
        found = self._base.get_many(paths)
        details = (
            self._base.get_many([self._paths.detail(group, *key) for key in wanted])
            if detailed
            else [None] * len(wanted)
        )
        return {
            key: committed_offset(path, *value, detail)
            for key, path, value, detail in zip(wanted, paths, found, details, strict=True)
            if value is not None
        }

    def groups(self) -> list[str]:
        """As :meth:`cellfeed.bridge.coordination.contract.Offsets.groups`."""
        for _ in range(TRIES_MAX):
            compared = self._owner.compared()
            found = self._groups()
            if self._is_still(compared):
                return found
        raise Unavailable(f"the groups could not be listed: {OWNER_CHANGES}")

    def _is_still(self, compared: Compared | None) -> bool:
        """Whether values read meanwhile are this datastore's."""
        if compared is None:
            return True
        [stat] = self._base.stats([compared.path], newest=True)
        if stat == compared.stat and self._base.connections_made == compared.connection:
            return True
        self._owner.doubt()
        return False

    def _groups(self) -> list[str]:
        names = self._base.children(self._paths.consumers, newest=True)
        stats = self._base.stats([self._paths.offsets(unquoted(name)) for name in names])
        return sorted(
            unquoted(name)
            for name, stat in zip(names, stats, strict=True)
            if stat is not None and stat.numChildren
        )

    def listed(self, parent: str) -> list[TopicPartition]:
        """Topics and partitions below a path, those with a number for a name."""
        topics = self._base.children(parent, newest=True)
        below = self._base.children_of([f"{parent}/{topic}" for topic in topics])
        return [
            (unquoted(topic), int(name))
            for topic, names in zip(topics, below, strict=True)
            for name in names
            if name.isdecimal()
        ]
