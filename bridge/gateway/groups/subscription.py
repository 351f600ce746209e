"""Which topics a member of a consumer group has subscribed to: the beginning of its metadata
(ConsumerProtocolSubscription), the same in all its versions. A coordinator needs nothing else of
it."""

from __future__ import annotations

import struct
from typing import Final

from cellfeed.bridge.gateway.groups.group import Group

_VERSION_BYTES: Final = 2
_CONSUMER: Final = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None when it is no subscription."""
    try:
        [count] = struct.unpack_from(">i", metadata, _VERSION_BYTES)
        at, topics = _VERSION_BYTES + 4, set()
        # Each one has two bytes at least: a count that lies ends at the metadata's own end.
        for _ in range(count):
            [size] = struct.unpack_from(">h", metadata, at)
            at += 2 + size
            if size < 0 or at > len(metadata):
                return None
            topics.add(metadata[at - size : at].decode())
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def is_subscribed(group: Group, topic: str) -> bool:
    """Whether a member of a group of consumers reads the topic, as far as that can be known: one
    whose metadata says nothing may read any."""
    if not group.members:
        return False
    if not group.protocol:
        return True
    subscriptions = [
        subscribed_topics(member.metadata(group.protocol)) for member in group.members.values()
    ]
    return any(topics is None or topic in topics for topics in subscriptions)


def is_of_consumers(group: Group) -> bool:
    """Others (Kafka Connect's workers) name no topics."""
    return group.protocol_type == _CONSUMER
