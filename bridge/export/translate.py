"""A consumer group's position, from the gateway's topic (an offset is an added_id) to the exported
one (Kafka's own offsets), and back.

In a partition of an export added_ids rise with the offsets. But the marks of transactions and the
records of aborted ones take offsets too, and cells that a view leaves out have none. So the record
is found by its header: a binary search, whose probes each read the first record at or behind an
offset.

A position means the next cell to read, so it is translated to the first record of that cell or a
later one: nothing is skipped, nothing comes twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from cellfeed.bridge.coordination.contract import CommittedOffset, Offsets
from cellfeed.bridge.events.messages import header_values
from cellfeed.bridge.events.record_headers import added_id_of
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_clients import admin_of, consumer_of
from cellfeed.bridge.export.kafka_errors import error_of, words
from cellfeed.bridge.export.limits import METADATA_S, TAIL_READ_S
from cellfeed.bridge.export.tails import read_tails
from cellfeed.store.errors import DataDamaged, NotFound, Refused, Unavailable

_WAIT_S: Final = 0.5


class Found(NamedTuple):
    """A record: its Kafka offset, and the cell that it is of."""

    offset: int
    added_id: int


Probe = Callable[[int], Found | None]
"""The first record at or behind a Kafka offset; None when there is none."""


class Moved(NamedTuple):
    """One partition of a group: its position before and after, in the terms of each side."""

    partition: int
    before: int
    after: int


def offset_of(probe: Probe, start: int, end: int, added_id: int) -> int:
    """The Kafka offset of the first record of that cell or a later one; ``end`` when there is none.
    ``start`` and ``end``: the partition's."""
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        found = probe(middle)
        if found is None or found.offset >= end or found.added_id >= added_id:
            high = middle
        else:
            low = found.offset + 1
    last = probe(low) if low < end else None
    return end if last is None else last.offset


def to_kafka(
    export: Export,
    datastore: str,
    coordinator: Offsets,
    group: str,
    on_partition: Callable[[], None],
) -> list[Moved]:
    """Sets the group's offsets on the exported topic to where it is on the gateway's. Raises
    NotFound when it is nowhere, Refused while it has members there."""
    source, topic = gateway_topic(export, datastore), export.topic_of(datastore)
    positions = {
        shard: each.offset
        for (name, shard), each in coordinator.fetch_offsets(group).items()
        if name == source
    }
    if not positions:
        raise NotFound(f"group {group!r} has no offsets on the gateway's topic {source!r}")
    moved = []
    with closing(consumer_of(export)) as consumer:
        for shard, location in sorted(positions.items()):
            start, end = consumer.get_watermark_offsets(
                TopicPartition(topic, shard), timeout=METADATA_S
            )
            moved.append(
                Moved(
                    shard, location, offset_of(_probe(consumer, topic, shard), start, end, location)
                )
            )
            on_partition()
    wanted = ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, each.partition, each.after) for each in moved]
    )
    admin = admin_of(export)  # held until it has answered: its requests end with it
    try:
        admin.alter_consumer_group_offsets([wanted], request_timeout=METADATA_S)[group].result(
            METADATA_S
        )
    except KafkaException as error:
        raise Refused(
            f"the cluster refuses to set the offsets of group {group!r}, most likely because it has"
            f" members: {words(error_of(error))}"
        ) from error
    return moved


def to_gateway(
    export: Export,
    datastore: str,
    coordinator: Offsets,
    group: str,
    on_partition: Callable[[], None],
) -> list[Moved]:
    """Sets the group's offsets on the gateway's topic to where it is on the exported one. Its
    consumers must have ended. Raises NotFound when it is nowhere."""
    topic = export.topic_of(datastore)
    positions = _positions(export, topic, group)
    moved = []
    with closing(consumer_of(export)) as consumer:
        tails = read_tails(consumer, topic, sorted(positions))
        for partition, offset in sorted(positions.items()):
            found = _probe(consumer, topic, partition)(offset)
            last = tails[partition].tail.added_id
            moved.append(
                Moved(
                    partition,
                    offset,
                    found.added_id if found is not None else 0 if last is None else last + 1,
                )
            )
            on_partition()
    coordinator.commit_offsets(
        group,
        {
            (gateway_topic(export, datastore), each.partition): CommittedOffset(each.after)
            for each in moved
        },
    )
    return moved


def gateway_topic(export: Export, datastore: str) -> str:
    """The gateway's topic that has the export's cells."""
    return datastore if export.column is None else f"{datastore}.{export.column}"


def _positions(export: Export, topic: str, group: str) -> Mapping[int, int]:
    asked = ConsumerGroupTopicPartitions(group)
    admin = admin_of(export)  # held until it has answered
    try:
        found = admin.list_consumer_group_offsets([asked], request_timeout=METADATA_S)[
            group
        ].result(METADATA_S)
    except KafkaException as error:
        raise Unavailable(
            f"the cluster does not report the offsets of group {group!r}: {words(error_of(error))}"
        ) from error
    positions = {
        each.partition: each.offset
        for each in found.topic_partitions
        if each.topic == topic and each.offset >= 0
    }
    if not positions:
        raise NotFound(
            f"group {group!r} has no offsets on topic {topic!r} of the cluster at"
            f" {export.bootstrap}"
        )
    return positions


def _probe(consumer: Consumer, topic: str, partition: int) -> Probe:
    def probe(offset: int) -> Found | None:
        consumer.assign([TopicPartition(topic, partition, offset)])
        deadline_s = time.monotonic() + TAIL_READ_S
        while time.monotonic() < deadline_s:
            for message in consumer.consume(1, timeout=_WAIT_S):
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (the library's name for it)
                        return None
                    if not error.retriable():
                        raise KafkaException(error)
                    continue
                added_id = added_id_of(header_values(message).items())
                if added_id is None:
                    raise DataDamaged(
                        f"the record at offset {message.offset()} of {topic}/{partition} has no"
                        " header added_id: no export wrote it"
                    )
                return Found(message.offset() or 0, added_id)
        raise Unavailable(
            f"partition {partition} of {topic!r} sent nothing for {TAIL_READ_S:.0f} s"
        )

    return probe
