"""Group offsets in ZooKeeper, where ordinary ZooKeeper tools can read and set them.

An offset is decimal text under ``/consumers/<group>/offsets/<topic>/<partition>``; a group
continues at a value set there by hand when it starts or the partition changes hands.
``committed_at_us`` is the znode's mtime (the server's clock, whole milliseconds). A leader epoch
and metadata lie in a sibling tree and count only as long as the same transaction wrote both.

A commit is one transaction: the versions and the random identities of the claims are checked in it,
and the era that they were given out in. So a claim that was taken over moves nothing, whenever the
request arrives, and also where ZooKeeper went back in time since (``zookeeper/history.py``).
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
from cellfeed.bridge.coordination.zookeeper.offset_values import committed_offset, values_of
from cellfeed.bridge.coordination.zookeeper.paths import (
    Paths,
    birth_of,
    quoted,
    unquoted,
    version_of,
)
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.bridge.coordination.zookeeper_owner import ChrootOwner, Compared
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.errors import (
    CellfeedError,
    InvalidRequest,
    OutcomeUnknown,
    StaleWriter,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import NO_HISTORY, History

declare("zookeeper.entries_decided")

_BASE_SESSION_S: Final = 4.0
"""Session time-out of the connection for everything that needs no session: it only says how soon a
dead connection is noticed, and how long a server that takes connections and does not answer is
waited for. The shortest that a server grants as it comes."""

_KNOWN_PATHS_MAX: Final = 200_000
"""Paths that are remembered as existing (some 150 bytes each), so that a save is one round trip.
Beyond it they are looked up again."""


_OWNER_CHANGES: Final = "whose the chroot is changes, or ZooKeeper is connected again, all the time"

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
        self._known: set[str] = set()
        """Paths of offsets that exist as far as this process knows; one that was deleted since is
        noticed when it is written."""

    def close(self) -> None:
        self._base.close()

    def found_by(self, heir: History) -> History:
        """As :meth:`ChrootOwner.found_by`."""
        return self._owner.found_by(heir)

    def lineage(self, group: str) -> str:
        era = self._history.check()
        path = self._paths.offsets(group)
        stat = self._base.stats([path], newest=True)[0]
        if stat is None:
            self._base.ensure(path)
            stat = self._base.stats([path])[0]
            if stat is None:
                raise Unavailable(f"ZooKeeper: {path} was deleted the moment it was made")
        # A group's folder may be as it was in a ZooKeeper that went back; its era is not. Earlier
        # versions knew no era: the first one has no name here.
        return f"zookeeper {stat.ctime:x}-{stat.czxid:x}" + (
            "" if era.first else f" era {era.identity}"
        )

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
        self._check_births(group, claims)
        fences = self._fences(claims)
        values = values_of(self._paths, group, offsets)
        extra: list[Operation] = []
        if entries:
            extra = [self.entries.creation(claims[0], entries)]
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
        for _ in range(TRIES_MAX):
            compared = self._owner.compared()
            found = self._fetch(group, partitions)
            if self._is_still(compared):
                return found
        raise Unavailable(f"the offsets of group {group!r} could not be read: {_OWNER_CHANGES}")

    def _fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        wanted = (
            self._listed(self._paths.offsets(group)) if partitions is None else list(partitions)
        )
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

    def has_unwritten_entries(self, group: str) -> bool:
        birth = self._births.birth(group)
        return birth is not None and self.entries.are_under_way(group, birth)

    def groups(self) -> list[str]:
        for _ in range(TRIES_MAX):
            compared = self._owner.compared()
            found = self._groups()
            if self._is_still(compared):
                return found
        raise Unavailable(f"the groups could not be listed: {_OWNER_CHANGES}")

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

    def delete_offsets(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        claims: Sequence[Claim] = (),
    ) -> None:
        self._owner.compared()
        for parent in (self._paths.details(group), self._paths.offsets(group)):
            there = self._listed(parent)
            gone = [key for key in there if partitions is None or key in partitions]
            paths = [f"{parent}/{quoted(topic)}/{partition}" for topic, partition in gone]
            self._known.difference_update(paths)
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
        self._check_births(group, claims)
        fences = self._fences(claims)
        for path in paths:
            try:
                self._commit(group, fences, [Delete(path)])
            except TransactionRefused as refused:
                if refused.operation in fences:
                    self._history.doubt()
                    raise self._stale(group, claims) from None
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
        raise Unavailable(f"the offsets of group {group!r} could not be saved: {_OWNER_CHANGES}")

    def _check_births(self, group: str, claims: Sequence[Claim]) -> None:
        """Compares ZooKeeper with the state table if it was connected again since, and refuses
        claims of an era that has ended."""
        era = self._history.era() if claims else None
        if era is not None and any(_era_of(claim) != era.identity for claim in claims):
            raise self._stale(group, claims)

    def _fences(self, claims: Sequence[Claim]) -> list[Check]:
        fences = [
            Check(self._paths.fence_of_era(era), 0) for era in {_era_of(claim) for claim in claims}
        ]
        for claim in claims:
            path = self._paths.claim(
                claim.group, claim.topic, claim.partition, birth_of(claim.token)
            )
            fences += [Check(path, version_of(claim.token)), Check(self._paths.identity(claim), 0)]
        return fences

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
            self._look_up([path for path in values if path not in self._known])
            writes = [
                Set(path, value) if path in self._known else Create(path, value)
                for path, value in values.items()
            ]
            try:
                self._commit(group, fences, [*extra, *writes])
            except TransactionRefused as refused:
                if refused.operation in fences or refused.operation in extra:
                    self._history.doubt()
                    raise self._stale(group, claims) from None
                # Made by another process, or deleted by somebody, since it was looked up.
                if not isinstance(refused.error, NodeExistsError | NoNodeError):
                    raise Unavailable(f"ZooKeeper: {refused}") from None
                self._known.difference_update(values)
            else:
                self._known.update(values)
                if fences:
                    self._history.saved()
                return
        raise Unavailable(
            f"the offsets of group {group!r} could not be saved: somebody deletes them all the time"
        )

    def _look_up(self, paths: Sequence[str]) -> None:
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

    def _listed(self, parent: str) -> list[TopicPartition]:
        """Topics and partitions below a path, those with a number for a name."""
        topics = self._base.children(parent, newest=True)
        below = self._base.children_of([f"{parent}/{topic}" for topic in topics])
        return [
            (unquoted(topic), int(name))
            for topic, names in zip(topics, below, strict=True)
            for name in names
            if name.isdecimal()
        ]

    def _stale(self, group: str, claims: Sequence[Claim]) -> StaleWriter:
        lost = ", ".join(f"{claim.topic}/{claim.partition}" for claim in claims)
        return StaleWriter(
            f"the offsets of group {group!r} were not saved: a claim on one of {lost} has been"
            " taken over"
        )


def _era_of(claim: Claim) -> str:
    return claim.identity.partition("-")[0]
