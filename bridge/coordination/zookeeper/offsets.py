"""Group offsets in ZooKeeper, where ordinary ZooKeeper tools can read and set them.

An offset is decimal text under ``/consumers/<group>/offsets/<topic>/<partition>``; what is set
there by hand is where the group continues when it starts or the partition changes hands.
``committed_at_us`` is the znode's mtime (the server's clock, whole milliseconds). A leader epoch
and metadata lie in a sibling tree and count only as long as the same transaction wrote both.

A commit is one transaction: the versions and the random identities of the claims are checked in it,
and the era that they were given out in. So a claim that was taken over moves nothing, whenever the
request arrives, and also where ZooKeeper went back in time since (``zookeeper/history.py``).

**Entries of the state table** that are to be written with offsets are in another storage, and no
transaction spans both. The transaction in ZooKeeper decides: it holds the entries too, in a znode
of their own. From there they are written to the state table, in order, each once. Crash points:

    before the transaction              nothing happened
    after it, before the state table    the znode stands. Whoever claims the partition next writes
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

So an offset that has moved past a cell has that cell's entry with it for good (I14): at once, or
before anybody works on the partition again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, TopicPartition
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
from cellfeed.bridge.coordination.zookeeper.history import ZooKeeperHistory
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
    DataDamaged,
    InvalidRequest,
    OutcomeUnknown,
    StaleWriter,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import NO_HISTORY, History

declare("zookeeper.entries_decided", "zookeeper.entries_written")

TRIES_MAX: Final = 50
"""How often a compare-and-set is tried again when others were faster: far more than there are
members in a group that join at the same moment."""

_BASE_SESSION_S: Final = 4.0
"""Session time-out of the connection for everything that needs no session: it only says how soon a
dead connection is noticed, and how long a server that takes connections and does not answer is
waited for. The shortest that a server grants as it comes."""

_KNOWN_PATHS_MAX: Final = 200_000
"""Paths that are remembered as existing (some 150 bytes each), so that a save is one round trip.
Beyond it they are looked up again."""


_WRITTEN_MAX: Final = 16
"""Identities of entries that a partition remembers as written. One at a time is on its way; others
follow only where answers got lost."""

_OWNER_CHANGES: Final = "whose the chroot is changes, or ZooKeeper is connected again, all the time"

Connect = Callable[[ZooKeeperAddress, float], ZooKeeperClient]


class _Details(msgspec.Struct, frozen=True):
    leader_epoch: int
    metadata: str


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
        self._state = state
        self._paths = Paths(address.chroot)
        self._base = connect(address, _BASE_SESSION_S)
        self._owner = ChrootOwner(self._base, self._paths, history)
        self._history = ZooKeeperHistory(self._base, state, self._paths, self._owner)
        self._births = Births(self._base, state, self._paths, self._history)
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
        values: dict[str, bytes] = {}
        for (topic, partition), offset in offsets.items():
            values[self._paths.offset(group, topic, partition)] = str(offset.offset).encode()
            if offset.leader_epoch != -1 or offset.metadata:
                details = _Details(offset.leader_epoch, offset.metadata)
                values[self._paths.detail(group, topic, partition)] = msgspec.json.encode(details)
        extra: list[Operation] = []
        if entries:
            folder = self._paths.entries(group, birth_of(claims[0].token))
            extra = [
                Create(
                    f"{folder}/{_entries_prefix(claims[0])}{secrets.token_hex(8)}@",
                    msgspec.msgpack.encode(dict(entries)),
                    sequence=True,
                )
            ]
        if fences or values:
            self._write(group, fences, values, extra, claims)
        if entries:
            failpoint("zookeeper.entries_decided")
            try:
                self.finish_entries(group, birth_of(claims[0].token), claims[0])
            except CellfeedError as error:
                raise OutcomeUnknown(
                    f"the offsets of group {group!r} are saved, what goes with them is on its way:"
                    f" {error}"
                ) from error

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
            key: _offset(path, *value, detail)
            for key, path, value, detail in zip(wanted, paths, found, details, strict=True)
            if value is not None
        }

    def groups(self) -> list[str]:
        for _ in range(TRIES_MAX):
            compared = self._owner.compared()
            found = self._groups()
            if self._is_still(compared):
                return found
        raise Unavailable(f"the groups could not be listed: {_OWNER_CHANGES}")

    def _is_still(self, compared: Compared | None) -> bool:
        """Whether what was read meanwhile is this datastore's."""
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

    def finish_entries(self, group: str, birth: int, claim: Claim | None = None) -> None:
        """Writes what is on its way to the state table: all of the group's, or those of one claim's
        partition."""
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

    # --- inside -----------------------------------------------------------------------------------

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


def _era_of(claim: Claim) -> str:
    return claim.identity.partition("-")[0]


def _entries_prefix(claim: Claim) -> str:
    """Of the znodes that hold entries committed under a claim on that partition; an identity and a
    sequence number follow."""
    return f"{quoted(claim.topic)}@{claim.partition}@"


def _offset(
    path: str, value: bytes, stat: ZnodeStat, detail: tuple[bytes, ZnodeStat] | None
) -> CommittedOffset:
    try:
        offset = int(value.decode("ascii"))
    except ValueError:
        raise DataDamaged(
            f"ZooKeeper: {path} holds {value[:40]!r}, which is no offset; set it to a decimal"
            " number"
        ) from None
    if detail is not None and detail[1].mzxid == stat.mzxid:
        details = msgspec.json.decode(detail[0], type=_Details)
        return CommittedOffset(offset, details.leader_epoch, details.metadata, stat.mtime * 1000)
    return CommittedOffset(offset, committed_at_us=stat.mtime * 1000)
