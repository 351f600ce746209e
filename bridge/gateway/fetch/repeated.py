"""Full fetches that repeat each other. librdkafka has no fetch sessions: it names all partitions in
every request, from another one on each time, and most of them as before.

A partition whose row is the same bytes as in an earlier request is not read again. Its answer is
kept as bytes until the partition becomes due. A request that names the partitions of the one before
from another one on is turned back, and compared with it as bytes: its cost grows with the rows that
changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cellfeed.bridge.gateway.fetch.partitions import AskedPartition, Partitions, Run
from cellfeed.bridge.gateway.wire.fetch_request import FetchRequest, TopicKey, row_format
from cellfeed.store.following.heads import LogHeads

_PARTITION: Final = 4
"""Bytes of the partition, which comes first in a row."""

_TOGETHER: Final = 64
"""Rows that are compared at once."""

_MISSES_MAX: Final = 3
"""Requests in a new order after which a client's order is looked at in one of ``_TRIED_EVERY``."""

_TRIED_EVERY: Final = 64


class _Order:
    """The rows of one topic in the order of an earlier request, each as it was asked last, and
    their partitions. Each partition has one row."""

    def __init__(self, region: bytes, run: list[AskedPartition], places: dict[bytes, int]) -> None:
        self.region = region
        self.run = run
        self._places = places

    @classmethod
    def of(cls, region: bytes, run: list[AskedPartition], size: int) -> _Order | None:
        """None where a partition has two rows."""
        places = {region[at : at + _PARTITION]: at for at in range(0, len(region), size)}
        return cls(region, run, places) if len(places) * size == len(region) else None

    def start_of(self, region: bytes) -> int | None:
        """Where in this order the first row of ``region`` stands, in bytes."""
        return self._places.get(region[:_PARTITION])

    def changed(self, region: bytes, size: int) -> list[int] | None:
        """Where rows of ``region``, in this order, are others, in bytes; None where one of them is
        of another partition."""
        found: list[int] = []
        for first in range(0, len(region), _TOGETHER * size):
            end = first + _TOGETHER * size
            if region[first:end] == self.region[first:end]:
                continue
            for at in range(first, min(end, len(region)), size):
                if region[at : at + size] != self.region[at : at + size]:
                    if region[at : at + _PARTITION] != self.region[at : at + _PARTITION]:
                        return None
                    found.append(at)
        return found


class RepeatedFetch(Partitions):
    """The partitions of one connection's full fetches."""

    def __init__(self, heads: LogHeads, begun_s: float) -> None:
        super().__init__(heads, begun_s)
        self._by_row: dict[TopicKey, dict[bytes, AskedPartition]] = {}
        self._rows: dict[AskedPartition, bytes] = {}
        self._topics: Sequence[tuple[TopicKey, bytes]] = ()
        self._runs: list[Run] = []
        self._orders: dict[TopicKey, _Order] = {}
        self._misses = 0
        """Requests in a row that came in a new order."""
        self._coding: tuple[int, bool] | None = None

    def follow(self, request: FetchRequest) -> list[Run]:
        """From now on these are the partitions."""
        coding = (request.version, request.is_committed)
        if coding != self._coding:
            for each in self.all():
                self._drop(each)
            self._coding, self._topics, self._runs = coding, (), []
            self._orders.clear()
        if request.topics == self._topics:
            return self._runs
        rows = row_format(request.version)
        moved = self._moved(request.topics, rows.struct.size)
        if moved is not None:
            self._runs, self._topics = moved, request.topics
        else:
            self._orders.clear()
            # A partition that is named twice is asked for once, as at a broker: from where its last
            # row says.
            here: dict[AskedPartition, None] = {}
            self._runs = []
            for topic, region in request.topics:
                run = dict.fromkeys(self._run(topic, rows.rows(region)))
                self._runs.append((topic, [each for each in run if each not in here]))
                here |= run
            self._topics = request.topics
            if len(here) != len(self):
                for each in self.all():
                    if each not in here:
                        self._drop(each)
        return self._runs

    def _moved(self, topics: Sequence[tuple[TopicKey, bytes]], size: int) -> list[Run] | None:
        """The runs of a request for the partitions of the last one, in their order, from another
        one of them on. None where it is another request; nothing is changed then."""
        if _shape(topics) != _shape(self._topics):
            return None
        if not self._orders and not self._keep_orders(size):
            return None
        turned: list[tuple[_Order, TopicKey, bytes, int, list[int]]] = []
        for topic, region in topics:
            order = self._orders[topic]
            start = order.start_of(region)
            if start is None:
                return None
            back = len(region) - start
            region = region[back:] + region[:back]
            changed = order.changed(region, size)
            if changed is None:
                return None
            turned.append((order, topic, region, start, changed))
        self._misses = 0
        for order, topic, region, _, changed in turned:
            for at in changed:
                self._ask_row(topic, region[at : at + size])
            order.region = region
        return [
            (topic, order.run[start // size :] + order.run[: start // size])
            for order, topic, _, start, _ in turned
        ]

    def _keep_orders(self, size: int) -> bool:
        """Whether the order of the last request is kept now: rarely for a client that sends each
        request in a new order."""
        self._misses += 1
        if self._misses > _MISSES_MAX and self._misses % _TRIED_EVERY:
            return False
        if len(dict(self._topics)) != len(self._topics):
            return False
        for (topic, region), (_, run) in zip(self._topics, self._runs, strict=True):
            order = _Order.of(region, run, size)
            if order is None:
                self._orders.clear()
                return False
            self._orders[topic] = order
        return True

    def _run(self, topic: TopicKey, rows: list[bytes]) -> list[AskedPartition]:
        by_row = self._by_row.setdefault(topic, {})
        found = list(map(by_row.get, rows))
        return [
            each if each is not None else self._ask_row(topic, row)
            for each, row in zip(found, rows, strict=True)
        ]

    def _ask_row(self, topic: TopicKey, row: bytes) -> AskedPartition:
        assert self._coding is not None  # noqa: S101 (for the type checker)
        asked = self.ask(topic, row_format(self._coding[0]).read(row))
        self._forget_row(asked)
        self._rows[asked] = row
        self._by_row[topic][row] = asked
        return asked

    def _drop(self, asked: AskedPartition) -> None:
        self._forget_row(asked)
        self.forget(asked.topic, asked.partition)

    def _forget_row(self, asked: AskedPartition) -> None:
        row = self._rows.pop(asked, None)
        if row is not None:
            del self._by_row[asked.topic][row]


def _shape(topics: Sequence[tuple[TopicKey, bytes]]) -> list[tuple[TopicKey, int]]:
    return [(topic, len(region)) for topic, region in topics]
