"""Records as the Kafka client for Python gives them."""

from __future__ import annotations

from confluent_kafka import Message

from cellfeed.bridge.events.decoded_event import DecodedEvent
from cellfeed.bridge.events.envelope import decode_envelope, decode_record


def cell_of_message(message: Message) -> DecodedEvent:
    """The cell of a consumed record of any topic with whole cells. Raises DataDamaged."""
    value = message.value()
    if value is not None:
        return decode_envelope(value)
    partition = message.partition()
    return decode_record(
        -1 if partition is None else partition,
        message.key(),
        None,
        header_values(message),
        message.timestamp()[1],
    )


def header_values(message: Message) -> dict[str, bytes]:
    """A record's headers by name."""
    given = message.headers() or []
    pairs = given.items() if isinstance(given, dict) else given
    return {
        name: value if isinstance(value, bytes) else (value or "").encode() for name, value in pairs
    }
