"""Group offsets in ZooKeeper, where ordinary ZooKeeper tools can read and set them.

An offset is decimal text under ``/consumers/<group>/offsets/<topic>/<partition>``; a group
continues at a value set there by hand when it starts or the partition changes hands.
``committed_at_us`` is the znode's mtime (the server's clock, whole milliseconds). A leader epoch
and metadata lie in a sibling tree and count only as long as the same transaction wrote both.

A commit is one transaction, with the fences of its claims (``zookeeper/claim_fences.py``).
Entries of the state table go with it in a znode of their own (``zookeeper/entries.py``).

So an offset that has moved past a cell has that cell's entry with it for good (I14): at once, or
before anybody works on the partition again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from kazoo.exceptions import NodeExistsError, NoNodeError

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, TopicPartition
from cellfeed.bridge.coordination.saved_calls import SavedCall, SavedCalls
from cellfeed.bridge.coordination.zookeeper.births import Births
from cellfeed.bridge.coordination.zookeeper.claim_fences import ClaimFences, lineage_of
from cellfeed.bridge.coordination.zookeeper.client import (
    Check,
    Create,
    Delete,
    Operation,
    OtherConnection,
    Set,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.connection import Connection
from cellfeed.bridge.coordination.zookeeper.entries import TRIES_MAX, OffsetEntries
from cellfeed.bridge.coordination.zookeeper.history import ZooKeeperHistory
from cellfeed.bridge.coordination.zookeeper.known_paths import KnownPaths
from cellfeed.bridge.coordination.zookeeper.offset_reads import OWNER_CHANGES, OffsetReads
from cellfeed.bridge.coordination.zookeeper.offset_values import values_of
from cellfeed.bridge.coordination.zookeeper.paths import (
    Paths,
    birth_of,
    quoted,
)
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.bridge.coordination.zookeeper_owner import ChrootOwner
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import (
    CellfeedError,
    InvalidRequest,
    OutcomeUnknown,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import NO_HISTORY, History

declare("zookeeper.entries_decided")

_BASE_SESSION_S: Final = 4.0
"""Session time-out of the connection for everything that needs no session: it only says how soon a
dead connection is noticed, and how long a server that takes connections and does not answer is
waited for. The shortest that a server grants as it comes."""


Connect = Callable[[ZooKeeperAddress, float], ZooKeeperClient]


class ZooKeeperOffsets:
    """:class:`cellfeed.bridge.coordination.contract.Offsets` over ZooKeeper. ``state`` is where
    entries go. ``connect`` begins a session of so many seconds."""

    keeps_in_store = False

    def __init__(
        self,
        address: ZooKeeperAddress,
        state: StateTable,
        history: Callable[[], History] = lambda: NO_HISTORY,
        *,
        connect: Connect = Connection,
    ) -> None:
        self._address = address
        self._connect = connect
        self._paths = Paths(address.chroot)
        self._base = connect(address, _BASE_SESSION_S)
        self._owner = ChrootOwner(self._base, self._paths, history)
        self._history = ZooKeeperHistory(self._base, state, self._paths, self._owner)
        self._births = Births(self._base, state, self._paths, self._history)
        self.entries = OffsetEntries(self._base, state, self._paths)
        self._saved_calls = SavedCalls()
        self._reads = OffsetReads(self._base, self._paths, self._owner)
        self._known = KnownPaths(self._base)
        self._fences = ClaimFences(self._paths, self._history)

    def close(self) -> None:
        self._base.close()

    def found_by(self, heir: History) -> History:
        """As :meth:`ChrootOwner.found_by`."""
        return self._owner.found_by(heir)

    def lineage(self, group: str) -> str:
        return lineage_of(group, self._base, self._paths, self._history)

    def why_changed(self) -> str | None:
        return self._history.because

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if entries and not claims:
            raise InvalidRequest("entries are committed under a claim")
        self._fences.check_eras(group, claims)
        fences = self._fences.of(claims)
        values = values_of(self._paths, group, offsets)
        extra = [self.entries.creation(claims[0], entries)] if entries else []
        if fences or values:
            self._write(group, fences, values, extra, claims)
        if entries:
            failpoint("zookeeper.entries_decided")
            try:
                self.entries.finish(group, birth_of(claims[0].token), claims[0])
            except CellfeedError as error:
                raise OutcomeUnknown(
                    f"the offsets of group {group!r} are saved, the entries that belong to"
                    " them are on their way:"
                    f" {error}"
                ) from error
        if values:
            self._saved_calls.saved(group)

    def when_saved(self, call: SavedCall) -> None:
        self._saved_calls.add(call)

    def fetch_offsets(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._reads.fetch(group, partitions)

    def groups(self) -> list[str]:
        return self._reads.groups()

    def has_unwritten_entries(self, group: str) -> bool:
        birth = self._births.birth(group)
        return birth is not None and self.entries.are_under_way(group, birth)

    def delete_offsets(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        claims: Sequence[Claim] = (),
    ) -> None:
        self._owner.compared()
        for parent in (self._paths.details(group), self._paths.offsets(group)):
            there = self._reads.listed(parent)
            gone = [key for key in there if partitions is None or key in partitions]
            paths = [f"{parent}/{quoted(topic)}/{partition}" for topic, partition in gone]
            self._known.forget(paths)
            self._discard(group, paths, claims)
            # A topic's folder goes with its last offset: a group is one that has any.
            emptied = {topic for topic, _ in gone} - {
                topic for topic, _ in set(there).difference(gone)
            }
            folders = (
                self._base.children(parent)
                if partitions is None
                else [quoted(topic) for topic in sorted(emptied)]
            )
            self._discard(group, [f"{parent}/{folder}" for folder in folders], claims)

    def _discard(self, group: str, paths: Sequence[str], claims: Sequence[Claim]) -> None:
        """Each by itself, under the claims."""
        self._fences.check_eras(group, claims)
        fences = self._fences.of(claims)
        for path in paths:
            try:
                self._commit(group, fences, [Delete(path)])
            except TransactionRefused as refused:
                if refused.operation in fences:
                    self._history.doubt()
                    raise self._fences.stale(group, claims) from None
                if not isinstance(refused.error, NoNodeError):
                    raise Unavailable(
                        f"ZooKeeper: {path} could not be deleted: {type(refused.error).__name__}"
                    ) from None

    def _commit(self, group: str, fences: Sequence[Check], operations: Sequence[Operation]) -> None:
        """Commits, while the chroot is this datastore's. Raises TransactionRefused."""
        for _ in range(TRIES_MAX):
            compared = self._owner.compared()
            owned = [compared.fence] if compared is not None else []
            try:
                if fences:
                    self._history.commit([*owned, *fences, *operations])
                else:
                    connection = compared.connection if compared is not None else None
                    self._base.commit([*owned, *operations], connection=connection)
            except OtherConnection:
                continue
            except TransactionRefused as refused:
                if refused.operation not in owned:
                    raise
                self._owner.doubt()
            else:
                return
        raise Unavailable(f"the offsets of group {group!r} could not be saved: {OWNER_CHANGES}")

    # --- inside -----------------------------------------------------------------------------------

    def _write(
        self,
        group: str,
        fences: Sequence[Check],
        values: Mapping[str, bytes],
        extra: Sequence[Operation],
        claims: Sequence[Claim],
    ) -> None:
        self._owner.compared()  # no folder is made in another datastore's chroot
        for _ in range(TRIES_MAX):
            self._known.look_up([path for path in values if path not in self._known])
            writes = [
                Set(path, value) if path in self._known else Create(path, value)
                for path, value in values.items()
            ]
            try:
                self._commit(group, fences, [*extra, *writes])
            except TransactionRefused as refused:
                if refused.operation in fences or refused.operation in extra:
                    self._history.doubt()
                    raise self._fences.stale(group, claims) from None
                # Made by another process, or deleted by somebody, since it was looked up.
                if not isinstance(refused.error, NodeExistsError | NoNodeError):
                    raise Unavailable(f"ZooKeeper: {refused}") from None
                self._known.forget(values)
            else:
                self._known.add(values)
                if fences:
                    self._history.saved()
                return
        raise Unavailable(
            f"the offsets of group {group!r} could not be saved: somebody deletes them all the time"
        )
