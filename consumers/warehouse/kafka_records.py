"""Parts of a Kafka record, the place where a loader reads next, and the ends of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from cellfeed.bridge.events.messages import header_values
from cellfeed.store.errors import Unavailable

METADATA_TIMEOUT_S: Final = 10.0
"""Longest wait for a cluster's answer about a topic."""

CONSUME_WAIT_S: Final = 0.2
"""How long one call waits for records: also how soon a stop is seen."""


def partition_of(record: Message) -> int:
    partition = record.partition()
    return -1 if partition is None else partition


def content_of(record: Message) -> tuple[bytes | None, bytes | None, dict[str, bytes], int]:
    """Value, key, headers and timestamp. All but the value are looked at only of records without
    one."""
    value = record.value()
    if value is not None:
        return value, None, {}, 0
    return None, record.key(), header_values(record), record.timestamp()[1]


def start_offset(next_offset: int) -> int:
    """Where to read from. An empty table loads the log from its present start; cells trimmed before
    are gone."""
    return next_offset or int(OFFSET_BEGINNING)


def end_offsets(
    bootstrap: str, topic: str, consumer_config: Mapping[str, Any] | None = None
) -> dict[int, int]:
    """The end offset of every partition of a topic now: ``until_offsets`` takes them to load all
    records that are there. Raises Unavailable."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "cellfeed-ends",
            "enable.auto.commit": False,
            **(consumer_config or {}),
        }
    )
    try:
        listed = consumer.list_topics(topic, METADATA_TIMEOUT_S).topics[topic]
        if listed.error is not None:
            raise Unavailable(f"topic {topic}: {listed.error.str()}")
        return {
            shard: consumer.get_watermark_offsets(TopicPartition(topic, shard), METADATA_TIMEOUT_S)[
                1
            ]
            for shard in sorted(listed.partitions)
        }
    except KafkaException as error:
        raise Unavailable(f"no end offsets of topic {topic} from {bootstrap}: {error}") from error
    finally:
        consumer.close()
