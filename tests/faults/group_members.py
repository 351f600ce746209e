"""Members of a consumer group while their gateway is killed: the records that each was given, its
commits, and the bounds of the positions between them."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cellfeed.bridge.events.envelope import decode_envelope
from tests.faults.invariants import Violations
from tests.support.kafka_messages import place_of

COMMIT_TIMEOUT_MS = 3_000
"""A commit that no gateway answers fails after this: the members must not wait for longer than a
gateway is away."""

_WHILE_AWAY = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._NO_OFFSET,
        KafkaError._DESTROY,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""The errors that a member may get when its gateway was killed: it is away, or it is back and the
member has to join again."""


class Resumed(NamedTuple):
    """Where a member began to read a partition that it was given. ``acknowledged``: the highest
    position whose commit had been acknowledged when it was given; ``attempted``: the highest that
    anyone had tried to commit when the first record came."""

    member: str
    partition: int
    offset: int
    acknowledged: int
    attempted: int


@dataclass
class GroupLedger:
    """The acts of one group's members. Thread-safe."""

    handled: dict[int, list[int]] = field(default_factory=dict)
    resumed: list[Resumed] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    failed_commits: int = 0
    owners: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """(generation, partition) to the members that had it, where a client tells its generation."""
    generations: dict[str, list[int]] = field(default_factory=dict)
    """The generations that each member was in, one after the other."""
    acknowledged: dict[int, int] = field(default_factory=dict)
    attempted: dict[int, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def raise_to(self, positions: dict[int, int], offsets: Mapping[int, int]) -> None:
        with self.lock:
            for partition, offset in offsets.items():
                positions[partition] = max(positions.get(partition, 0), offset)

    def given(self, member: str, generation: int, partitions: Iterable[int]) -> None:
        with self.lock:
            self.generations.setdefault(member, []).append(generation)
            for partition in partitions:
                self.owners.setdefault((generation, partition), set()).add(member)

    def total_acknowledged(self) -> int:
        with self.lock:
            return sum(self.acknowledged.values())


def check_group(ledger: GroupLedger, ends: dict[int, int]) -> Violations:
    """I7: within an assignment nothing is skipped. I14: no position is ahead of the work. I20: no
    acknowledged commit is lost or goes back. I8: in the end every offset was handled."""
    ahead = [
        f"{each}: began behind everything that was ever committed"
        for each in ledger.resumed
        if each.offset > each.attempted
    ]
    unhandled = [
        f"{shard}: committed up to {position}, {missing} of them were never handled"
        for shard, position in ledger.acknowledged.items()
        if (missing := len(set(range(position)) - set(ledger.handled.get(shard, ()))))
    ]
    back = [
        f"{each}: began before a position that was acknowledged"
        for each in ledger.resumed
        if each.offset < each.acknowledged
    ]
    back += [
        f"generation {generation}: partition {partition} was of {sorted(owners)}"
        for (generation, partition), owners in ledger.owners.items()
        if len(owners) > 1
    ]
    back += [
        f"{member}: generations {before}, then {after}"
        for member, all_of in ledger.generations.items()
        for before, after in pairwise(all_of)
        if after < before
    ]
    unread = [
        f"{shard}: {end} records, some never handled"
        for shard, end in ends.items()
        if set(range(end)) - set(ledger.handled.get(shard, ()))
    ]
    return {"I7": list(ledger.gaps), "I14": ahead + unhandled, "I20": back, "I8": unread}


class Member(threading.Thread):
    """The notes that every client's member keeps. ``run`` is the client's own: it handles a few
    records, commits the position behind them, and waits for the answer."""

    def __init__(self, name: str, ledger: GroupLedger) -> None:
        super().__init__(name=name, daemon=True)
        self._ledger = ledger
        self._ended = threading.Event()
        self._next: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self.was_given = threading.Event()
        """Set by its first assignment."""

    @abstractmethod
    def stop(self) -> None:
        """Leaves the group."""

    def _was_given(self, partitions: Iterable[int]) -> None:
        with self._ledger.lock:
            self._given.update(
                {each: self._ledger.acknowledged.get(each, 0) for each in partitions}
            )
        self.was_given.set()

    def _was_revoked(self, partitions: Iterable[int]) -> None:
        for each in partitions:
            self._next.pop(each, None)
            self._given.pop(each, None)

    def _received(self, partition: int, offset: int, value: bytes | None) -> None:
        event = decode_envelope(value or b"")
        if (event.shard, event.added_id) != (partition, offset):
            self._ledger.errors.append(
                f"{partition}/{offset} carries {event.shard}/{event.added_id}"
            )
        self._handle(partition, offset)

    def _handle(self, partition: int, offset: int) -> None:
        ledger = self._ledger
        with ledger.lock:
            expected = self._next.get(partition)
            if expected is None:
                ledger.resumed.append(
                    Resumed(
                        self.name,
                        partition,
                        offset,
                        self._given.get(partition, 0),
                        ledger.attempted.get(partition, 0),
                    )
                )
            elif offset != expected:
                ledger.gaps.append(f"{self.name}: {partition} went from {expected - 1} to {offset}")
            ledger.handled.setdefault(partition, []).append(offset)
        self._next[partition] = offset + 1

    def _to_commit(self) -> dict[int, int]:
        """Positions beyond the acknowledged ones; they count as attempted."""
        acknowledged = self._ledger.acknowledged
        offsets = {
            partition: offset
            for partition, offset in self._next.items()
            if offset > acknowledged.get(partition, 0)
        }
        self._ledger.raise_to(self._ledger.attempted, offsets)
        return offsets


class GroupMember(Member):
    """confluent-kafka."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        name: str,
        ledger: GroupLedger,
        strategy: str = "range,roundrobin",
        *,
        commits: bool = True,
    ) -> None:
        super().__init__(name, ledger)
        self._commits = commits
        self._topic_name = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 300,
                "socket.timeout.ms": COMMIT_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 300,
                "fetch.wait.max.ms": 100,
                "log_level": 0,  # the run itself kills gateways, so that is no news
                "partition.assignment.strategy": strategy,
            }
        )
        self._consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def run(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(40, 0.1):
                if (error := message.error()) is not None:
                    self._tell(error)
                    continue
                self._received(*place_of(message), message.value())
            if self._commits:
                self._commit()

    def stop(self) -> None:
        self._ended.set()
        self.join(30)
        self._consumer.close()

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._was_given(each.partition for each in partitions)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._was_revoked(each.partition for each in partitions)

    def _commit(self) -> None:
        offsets = [
            TopicPartition(self._topic_name, partition, offset)
            for partition, offset in self._to_commit().items()
        ]
        if not offsets:
            return
        try:
            answered = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._ledger.failed_commits += 1
            self._tell(error.args[0])
            return
        self._ledger.raise_to(
            self._ledger.acknowledged,
            {each.partition: each.offset for each in answered if each.error is None},
        )

    def _tell(self, error: KafkaError) -> None:
        if error.code() not in _WHILE_AWAY:
            self._ledger.errors.append(f"{self.name}: {error}")
