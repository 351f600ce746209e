"""Entries of the state table that are to be written with offsets are in another storage, and no
transaction spans both. The transaction in ZooKeeper decides: it holds the entries too, in a znode
of their own. From there they are written to the state table, in order, each once. Crash points:

    before the transaction              nothing happened
    after it, before the state table    the znode stands. The partition's next owner writes
                                        it first, and the writer itself does before its next one
    after the state table, before the znode is deleted      as before, but the state table has its
                                                            random identity among those that were
                                                            written last (in one
                                        commit with the entries): it is only deleted
    the answer was lost                 OutcomeUnknown: one who tries again may have the same
                                        entries on their way twice; both are written before the next
                                        step

A number alone decides nothing here: birth, transaction number and sequence number repeat where
ZooKeeper goes back in time, and entries would be dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

import msgspec
from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.contract import Claim
from cellfeed.bridge.coordination.zookeeper.client import (
    Create,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.paths import (
    Paths,
    birth_of,
    quoted,
)
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import (
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint

declare("zookeeper.entries_written")

TRIES_MAX: Final = 50
"""How often a compare-and-set is tried again when others were faster: far more than there are
members in a group that join at the same moment."""

_WRITTEN_MAX: Final = 16
"""Identities of entries that a partition remembers as written. One at a time is on its way; others
follow only where answers got lost."""


class OffsetEntries:
    """See the module."""

    def __init__(self, base: ZooKeeperClient, state: StateTable, paths: Paths) -> None:
        self._base, self._state, self._paths = base, state, paths

    def creation(self, claim: Claim, entries: Mapping[str, bytes | None]) -> Create:
        """The operation that puts the entries on their way, in the transaction of the offsets."""
        folder = self._paths.entries(claim.group, birth_of(claim.token))
        return Create(
            f"{folder}/{_entries_prefix(claim)}{secrets.token_hex(8)}@",
            msgspec.msgpack.encode(dict(entries)),
            sequence=True,
        )

    def finish(self, group: str, birth: int, claim: Claim | None = None) -> None:
        """Writes entries on their way to the state table: all of the group's, or those of one
        claim's partition."""
        folder = self._paths.entries(group, birth)
        prefix = _entries_prefix(claim) if claim else ""
        names = [
            _EntryName(*name.split("@"))
            for name in self._base.children(folder, newest=True)
            if name.startswith(prefix)
        ]
        for name in sorted(names, key=lambda name: (name.topic, name.partition, int(name.number))):
            found = self._base.get(f"{folder}/{name}")
            if found is not None:
                self._finish(group, birth, name, *found)
                failpoint("zookeeper.entries_written")
                self._base.discard([f"{folder}/{name}"])

    def are_under_way(self, group: str, birth: int) -> bool:
        """Whether any of the group are not in the state table for certain."""
        return bool(self._base.children(self._paths.entries(group, birth), newest=True))

    def _finish(
        self, group: str, birth: int, name: _EntryName, value: bytes, stat: ZnodeStat
    ) -> None:
        key = f"coordination/{quoted(group)}/written/{name.topic}@{name.partition}"
        entries = msgspec.msgpack.decode(value, type=dict[str, bytes | None])
        for _ in range(TRIES_MAX):
            mark = self._state.get(key)
            written = msgspec.json.decode(mark.value, type=list[str]) if mark else []
            if name.identity(birth, stat) in written:
                return
            write = {
                **entries,
                key: msgspec.json.encode([*written, name.identity(birth, stat)][-_WRITTEN_MAX:]),
            }
            if self._state.commit(write, expect={key: mark.version if mark else None}) is not None:
                return
        raise Unavailable(f"the entries of group {group!r} could not be written: others are faster")


class _EntryName:
    """Of a znode that holds entries: ``TOPIC@PARTITION@IDENTITY@NUMBER``; earlier versions gave it
    no identity."""

    def __init__(self, topic: str, partition: str, *rest: str) -> None:
        self.topic, self.partition = topic, partition
        *self._identity, self.number = rest

    def __str__(self) -> str:
        return "@".join((self.topic, self.partition, *self._identity, self.number))

    def identity(self, birth: int, stat: ZnodeStat) -> str:
        return self._identity[0] if self._identity else f"{birth}-{stat.czxid}"


def _entries_prefix(claim: Claim) -> str:
    """Of the znodes that hold entries committed under a claim on that partition; an identity and a
    sequence number follow."""
    return f"{quoted(claim.topic)}@{claim.partition}@"
