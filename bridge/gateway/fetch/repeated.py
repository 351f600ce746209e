"""Full fetches that repeat each other. librdkafka has no fetch sessions: it names all partitions in
every request, from another one on each time, and most of them as before.

A partition whose row is the same bytes as in an earlier request is not read again. Its answer is
kept as bytes until the partition becomes due.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.bridge.gateway.fetch.partitions import AskedPartition, Partitions, Run
from cellfeed.bridge.gateway.wire.fetch_request import FetchRequest, TopicKey, row_format
from cellfeed.store.following.heads import LogHeads


class RepeatedFetch(Partitions):
    """The partitions of one connection's full fetches."""

    def __init__(self, heads: LogHeads, begun_s: float) -> None:
        super().__init__(heads, begun_s)
        self._by_row: dict[TopicKey, dict[bytes, AskedPartition]] = {}
        self._rows: dict[AskedPartition, bytes] = {}
        self._topics: Sequence[tuple[TopicKey, bytes]] = ()
        self._runs: list[Run] = []
        self._coding: tuple[int, bool] | None = None

    def follow(self, request: FetchRequest) -> list[Run]:
        """From now on these are the partitions."""
        coding = (request.version, request.is_committed)
        if coding != self._coding:
            for each in self.all():
                self._drop(each)
            self._coding, self._topics = coding, ()
        if request.topics != self._topics:
            rows = row_format(request.version)
            self._runs = [
                (topic, self._run(topic, rows.rows(region))) for topic, region in request.topics
            ]
            self._topics = request.topics
            here = {each for _, run in self._runs for each in run}
            if len(here) != len(self):
                for each in self.all():
                    if each not in here:
                        self._drop(each)
        return self._runs

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
