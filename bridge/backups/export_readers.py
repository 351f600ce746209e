"""How far an export has written: its Kafka cluster is a reader that a restore must respect."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import KafkaException

from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_clients import consumer_of
from cellfeed.bridge.export.limits import METADATA_S
from cellfeed.bridge.export.tails import read_tails
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.errors import Unavailable


def export_readers(export: Export, datastore: str, shards: int) -> list[Reader]:
    """How far the partitions of an export are; nothing where its topic does not exist. Raises
    Unavailable."""
    topic = export.topic_of(datastore)
    try:
        with closing(consumer_of(export)) as consumer:
            described = consumer.list_topics(topic, timeout=METADATA_S).topics[topic]
            if described.error is not None:
                return []
            tails = read_tails(
                consumer,
                topic,
                sorted(number for number in described.partitions if number < shards),
            )
    except KafkaException as error:
        raise Unavailable(
            f"export {export.name}: the end of its topic {topic} is not known: {error}"
        ) from error
    return [
        Reader(export.name, topic, shard, tail.tail.added_id + 1, source="export")
        for shard, tail in tails.items()
        if tail.tail.added_id is not None
    ]
