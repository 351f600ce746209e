"""A loader's question for the cluster's identity, and the parts of a record, with a consumer that
gives the answers of the test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from cellfeed.consumers.warehouse import kafka_records, recognition
from cellfeed.consumers.warehouse.kafka_records import (
    content_of,
    end_offsets,
    partition_of,
    start_offset,
)
from cellfeed.consumers.warehouse.recognition import Recognition
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.source import TableSource
from cellfeed.store.errors import ProtectData, Unavailable
from tests.support.scripted_consumer import TOPIC, Record, ScriptedConsumer, end_of, records
from tests.support.warehouse_log import SHARD, Log, feed, table_directory


@pytest.fixture
def log() -> Log:
    return Log(range(10))


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> ScriptedConsumer:
    made = ScriptedConsumer()
    monkeypatch.setattr(recognition, "Consumer", made.made)
    monkeypatch.setattr(kafka_records, "Consumer", made.made)
    monkeypatch.setattr(kafka_records, "METADATA_TIMEOUT_S", 0.2)
    return made


@pytest.fixture
def directory(tmp_path: Path, log: Log) -> Path:
    """A table whose last row is that at offset 4, of a cluster that nobody noted."""
    made = table_directory(tmp_path)
    loader = ShardLoader(made, SHARD)
    feed(loader, log, 5)
    loader.flush()
    return made


@pytest.fixture
def asking(directory: Path, consumer: ScriptedConsumer) -> Recognition:
    return Recognition({"group.id": "group-look"}, TOPIC, directory)


def test_a_cluster_with_the_tables_last_rows_is_known_from_then_on(
    asking: Recognition, consumer: ScriptedConsumer, directory: Path, log: Log
) -> None:
    assert not asking.is_recognised
    consumer.steps = [[], records(SHARD, log.records[4:5])]
    assert asking.recognise()
    assert vars(asking)["is_recognised"] is True
    assert TableSource(directory).known() == ["cluster"]
    assert [call for call in consumer.calls if call[0] != "list_topics"] == [
        ("assign", {SHARD: 4}),
        ("unassign",),
    ]
    assert asking.recognise()
    assert [call[0] for call in consumer.calls].count("assign") == 1


@pytest.mark.parametrize(
    "there",
    [
        records(SHARD, Log(range(4, 6), shard=SHARD).records[1:]),
        [end_of(SHARD, 4)],
        [Record(SHARD, 4, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))],
        [Record(SHARD, 4, error=KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))],
        [Record(SHARD, 4, Log([4, 5], shard=SHARD).records[1][1])],
        [Record(SHARD, 7, Log([4], shard=SHARD).records[0][1])],
    ],
)
def test_a_cluster_without_the_tables_last_row_at_its_offset_is_refused(
    asking: Recognition, consumer: ScriptedConsumer, directory: Path, there: Sequence[Record]
) -> None:
    consumer.steps = [there]
    with pytest.raises(ProtectData, match="not of cluster"):
        asking.recognise()
    assert not asking.is_recognised
    assert TableSource(directory).known() == []
    assert consumer.calls[-1] == ("unassign",)


def test_a_cluster_that_does_not_answer_is_asked_again(
    asking: Recognition, consumer: ScriptedConsumer, directory: Path, log: Log
) -> None:
    assert not asking.recognise()  # no record within the time
    consumer.fails["list_topics"] = KafkaException(KafkaError(KafkaError._TRANSPORT))
    assert not asking.recognise()
    consumer.cluster_id = None
    assert not asking.recognise()
    assert not asking.is_recognised
    assert TableSource(directory).known() == []
    consumer.cluster_id = "cluster"
    passing = Record(SHARD, 4, error=KafkaError(KafkaError._TRANSPORT))
    consumer.steps = [[passing], records(SHARD, log.records[4:5])]
    assert asking.recognise()


def test_the_client_of_the_question_is_closed(
    asking: Recognition, consumer: ScriptedConsumer
) -> None:
    asking.close()
    assert consumer.calls == [("close",)]


def test_a_record_without_a_value_is_recognised_by_its_key_and_time() -> None:
    record: Any = Record
    assert content_of(record(SHARD, 1, b"value", key=b"key")) == (b"value", None, {}, 0)
    assert content_of(record(SHARD, 1, None, key=b"key")) == (None, b"key", {}, 5)
    assert partition_of(record(SHARD, 1)) == SHARD
    assert partition_of(record(0, 1)) == 0
    assert partition_of(record(None, 1)) == -1


def test_an_empty_table_takes_the_log_from_wherever_it_starts() -> None:
    assert start_offset(0) == OFFSET_BEGINNING
    assert start_offset(7) == 7


def test_the_ends_of_a_topic_are_those_of_all_its_partitions(consumer: ScriptedConsumer) -> None:
    consumer.ends = {2: 20, 0: 0, 1: 11}
    assert list(end_offsets("nowhere", TOPIC, {"client.id": "mine"}).items()) == [
        (0, 0),
        (1, 11),
        (2, 20),
    ]
    assert consumer.config["client.id"] == "mine"
    assert consumer.config["enable.auto.commit"] is False
    assert consumer.calls[-1] == ("close",)


def test_unknown_partition_ends_are_an_error_and_not_an_empty_topic(
    consumer: ScriptedConsumer,
) -> None:
    consumer.topic_error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(Unavailable, match="topic trips"):
        end_offsets("nowhere", TOPIC)
    consumer.fails["list_topics"] = KafkaException(KafkaError(KafkaError._TRANSPORT))
    with pytest.raises(Unavailable, match="no end offsets of topic trips from nowhere"):
        end_offsets("nowhere", TOPIC)
    assert [call[0] for call in consumer.calls].count("close") == 2
