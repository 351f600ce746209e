"""The partitions that a client fetches, and which of them may have something to say. A fetch looks
at those, not at all of them.

Invariant: a partition that is not due would be answered as it was the last time, without an error
and without a record. An answer follows from the request, from the log's head, from the rights of
the client, and from the topic. So a partition becomes due when one of them changes:

    another offset, epoch or limit is asked      :meth:`Partitions.ask`
    a put, a trim, an erasure, a promotion,      each changes the shard's head, and the head is
    a shard that moves, a restore                noted (:class:`~cellfeed.store.following.heads.
                                                 HeadWatch`): watermark, log start, next id, leader
                                                 epoch and the count of erasures are in it
    users or ACLs change, or the version of      ``terms`` differ: all become due
    the request
    a topic appears, or its schema changes       a partition of an unknown topic has an error, and
                                                 one with an error stays due; the records of a
                                                 partition at the end of its log are read with the
                                                 topic as it is when they come
    an error, or records that were not taken     it stays due: :meth:`Partitions.put_back`

A due partition is taken before it is looked at. A change that comes meanwhile makes it due again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cellfeed.bridge.gateway.wire.fetch_request import Row, TopicKey
from cellfeed.store.following.heads import LogHeads


class AskedPartition:
    """A partition as it is asked for. ``last_ends``: the watermark and log start of the last
    answer; ``piece``: its answer as bytes, while that holds and has no records."""

    __slots__ = ("asked", "last_ends", "piece", "topic")

    def __init__(self, topic: TopicKey, asked: Row) -> None:
        self.topic = topic
        self.asked = asked
        self.piece: bytes | None = None
        self.last_ends: tuple[int, int] | None = None

    @property
    def partition(self) -> int:
        return self.asked.partition


Run = tuple[TopicKey, list[AskedPartition]]
"""A topic, and partitions of it in the order of an answer."""


class Terms(NamedTuple):
    """The conditions of all answers besides the log and the request. Security is compared as an
    object."""

    security: object
    version: int

    def are_as(self, others: Terms | None) -> bool:
        return (
            others is not None
            and self.security is others.security
            and self.version == others.version
        )


class Partitions:
    """See the module. Used on the event loop, by one request at a time. ``used_s`` and ``begun_s``
    are moments of the monotonic clock."""

    def __init__(self, heads: LogHeads, begun_s: float) -> None:
        self._watch = heads.watch()
        self._asked: dict[tuple[TopicKey, int], AskedPartition] = {}
        self._by_shard: dict[int, list[AskedPartition]] = {}
        self._due: dict[AskedPartition, None] = {}
        self._terms: Terms | None = None
        self.is_closed = False
        self.begun_s = self.used_s = begun_s
        self.counted = 0
        """Partitions that are counted for it in the gateway's limit."""

    def __len__(self) -> int:
        return len(self._asked)

    def all(self) -> list[AskedPartition]:
        """In the order in which they were first asked for."""
        return list(self._asked.values())

    def runs(self) -> list[Run]:
        """The same by topic."""
        return by_topic(self._asked.values())

    def ask(self, topic: TopicKey, asked: Row) -> AskedPartition:
        """Adds the partition, or changes its request."""
        key = (topic, asked.partition)
        found = self._asked.get(key)
        if found is None:
            found = self._asked[key] = AskedPartition(topic, asked)
            self._by_shard.setdefault(asked.partition, []).append(found)
            self._watch.follow(asked.partition)
        found.asked = asked
        self._due[found] = None
        return found

    def forget(self, topic: TopicKey, partition: int) -> None:
        """Takes the partition out, if it is here."""
        found = self._asked.pop((topic, partition), None)
        if found is None:
            return
        self._due.pop(found, None)
        others = self._by_shard[partition]
        others.remove(found)
        if not others:
            del self._by_shard[partition]
            self._watch.unfollow(partition)

    def take_due(self, terms: Terms) -> list[AskedPartition]:
        """Those that may have something to say, first those that have waited longest."""
        for shard in self._watch.take():
            self._due.update(dict.fromkeys(self._by_shard.get(shard, ())))
        if not terms.are_as(self._terms):
            self._terms = terms
            self._due.update(dict.fromkeys(self._asked.values()))
        due, self._due = list(self._due), {}
        return due

    def put_back(self, partitions: Iterable[AskedPartition]) -> None:
        """They have more to say. Those that became due meanwhile stay in front of them."""
        self._due.update(dict.fromkeys(partitions))

    def has_changed(self, terms: Terms) -> bool:
        """Whether something has become due since the last :meth:`take_due`, besides partitions that
        were put back."""
        return bool(self._watch.changed) or not terms.are_as(self._terms)

    async def wait(self, timeout_s: float) -> None:
        """Returns when there may be more to read since the last :meth:`take_due`."""
        await self._watch.wait(timeout_s)

    def wake(self) -> None:
        """Has a request that waits look again."""
        self._watch.wake()

    def close(self) -> None:
        """Nothing of it becomes due any more; a request that waits is answered."""
        self.is_closed = True
        self._watch.close()


def by_topic(partitions: Iterable[AskedPartition]) -> list[Run]:
    """A run for each topic."""
    found: dict[TopicKey, list[AskedPartition]] = {}
    for each in partitions:
        found.setdefault(each.topic, []).append(each)
    return list(found.items())
