"""An offset is saved once readers of commits see its records: the questions that this takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

from cellfeed.bridge.export import shown_ends
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.shown_ends import ShownEnds
from cellfeed.store.errors import Unavailable


class _Answer:
    def __init__(self, offset: int) -> None:
        self.offset = offset

    def result(self) -> _Answer:
        return self


class _Cluster:
    """``ends`` of its partitions, by look. A client of before a restart is refused for ever."""

    def __init__(self) -> None:
        self.ends: list[dict[int, int]] = []
        self.asked: list[set[int]] = []
        self.clients, self.restarts = 0, 0

    def client(self, _: Export) -> _Client:
        self.clients += 1
        return _Client(self, self.restarts)


class _Client:
    def __init__(self, cluster: _Cluster, born: int) -> None:
        self._cluster, self._born = cluster, born

    def list_offsets(
        self, wanted: Mapping[TopicPartition, Any], *, isolation_level: Any, request_timeout: float
    ) -> dict[TopicPartition, _Answer]:
        assert isolation_level is IsolationLevel.READ_COMMITTED
        if self._born != self._cluster.restarts:
            raise KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH))
        ends = self._cluster.ends
        now = ends.pop(0) if len(ends) > 1 else ends[0]
        self._cluster.asked.append({each.partition for each in wanted})
        return {each: _Answer(now[each.partition]) for each in wanted}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> _Cluster:
    made = _Cluster()
    monkeypatch.setattr(shown_ends, "admin_of", made.client)
    return made


@pytest.fixture
def shown(cluster: _Cluster) -> ShownEnds:
    return ShownEnds(cast("Export", None), "trips")


def test_only_partitions_that_are_not_seen_yet_are_asked_for(
    cluster: _Cluster, shown: ShownEnds
) -> None:
    cluster.ends = [{0: 5, 1: 3}, {0: 5, 1: 8}]
    shown.wait({0: 5, 1: 8})
    assert cluster.asked == [{0, 1}, {1}]
    shown.wait({0: 5, 1: 8})
    assert len(cluster.asked) == 2
    assert cluster.clients == 1


def test_an_end_that_is_not_seen_in_time_is_named(
    cluster: _Cluster, shown: ShownEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_ends, "SHOWN_S", 0.0)
    cluster.ends = [{0: 5}]
    with pytest.raises(Unavailable, match="partition 0 of 'trips' up to 5, and 9 was committed"):
        shown.wait({0: 9})


def test_a_refused_client_is_not_used_again(cluster: _Cluster, shown: ShownEnds) -> None:
    """It has the leader epochs of before the restart, and learns no others."""
    cluster.ends = [{0: 5}]
    shown.wait({0: 5})
    cluster.restarts += 1
    cluster.ends = [{0: 7}]
    with pytest.raises(Unavailable, match="FENCED_LEADER_EPOCH"):
        shown.wait({0: 7})
    shown.wait({0: 7})
    assert cluster.clients == 2
