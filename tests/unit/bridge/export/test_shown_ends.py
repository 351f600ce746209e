"""Waiting until readers of commits see the records of a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

from cellfeed.bridge.export import shown_ends
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.shown_ends import ShownEnds
from cellfeed.store.errors import Unavailable

EXPORT = Export("out", "127.0.0.1:1", topic="out")


class Cluster:
    """Shows readers of commits one more record of each partition with each question. ``error``:
    that of the next answer."""

    def __init__(self) -> None:
        self.ends = {0: 0, 1: 4}
        self.asked: list[set[int]] = []
        self.error: KafkaException | None = None

    def list_offsets(
        self, wanted: Mapping[TopicPartition, Any], *, isolation_level: Any, request_timeout: float
    ) -> Mapping[TopicPartition, Future[Any]]:
        assert isolation_level is IsolationLevel.READ_COMMITTED
        assert request_timeout > 0
        self.asked.append({each.partition for each in wanted})
        found: dict[TopicPartition, Future[Any]] = {}
        for each in wanted:
            found[each] = Future()
            self.ends[each.partition] += 1
            if self.error is not None:
                found[each].set_exception(self.error)
            else:
                found[each].set_result(SimpleNamespace(offset=self.ends[each.partition]))
        return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(shown_ends, "admin_of", lambda _: cast("Any", made))
    return made


def test_each_partition_is_asked_until_its_records_are_seen_and_not_again(cluster: Cluster) -> None:
    shown = ShownEnds(EXPORT, "out")
    shown.wait({0: 3, 1: 5})
    assert cluster.asked == [{0, 1}, {0}, {0}]
    shown.wait({0: 3, 1: 5})
    assert len(cluster.asked) == 3
    shown.wait({0: 4, 1: 5})
    assert cluster.asked[3:] == [{0}]


def test_a_topic_that_was_made_again_is_asked_again(cluster: Cluster) -> None:
    shown = ShownEnds(EXPORT, "out")
    shown.wait({0: 3})
    cluster.ends[0] = 0
    shown.wait({0: 1})
    assert len(cluster.asked) == 4


def test_missing_commit_marks_are_an_error_with_the_places(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_ends, "SHOWN_S", 0.0)
    with pytest.raises(Unavailable, match=r"partition 0 of 'out' up to \d+, and 900 was committed"):
        ShownEnds(EXPORT, "out").wait({0: 900})


def test_a_cluster_that_is_away_is_an_error_that_is_waited_out(cluster: Cluster) -> None:
    cluster.error = KafkaException(KafkaError(KafkaError._TRANSPORT, "the broker went away"))
    with pytest.raises(Unavailable, match="could not be read"):
        ShownEnds(EXPORT, "out").wait({0: 1})
