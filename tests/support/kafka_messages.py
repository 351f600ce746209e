"""Values that confluent-kafka's types leave open: a message without an error has a partition and an
offset."""

from __future__ import annotations

from confluent_kafka import Message


def place_of(message: Message) -> tuple[int, int]:
    """Partition and offset of a message that is not an error."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None, f"a message without a partition: {message.error()}"
    assert offset is not None, f"a message without an offset: {message.error()}"
    return partition, offset
