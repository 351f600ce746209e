"""The topics that a group's members read, as far as their metadata says."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.gateway.groups.group import Group
from cellfeed.bridge.gateway.groups.subscription import is_subscribed, subscribed_topics
from tests.unit.bridge.gateway.test_gateway_group import join

TOPICS = st.lists(st.text(max_size=20), max_size=5)


def subscription(topics: Sequence[str], version: int = 3) -> bytes:
    named = b"".join(struct.pack(">h", len(topic.encode())) + topic.encode() for topic in topics)
    return struct.pack(">hi", version, len(topics)) + named + struct.pack(">i", -1)


@given(TOPICS, st.integers(0, 3), st.binary(max_size=30))
def test_a_subscription_is_read_with_any_trailing_bytes(
    topics: list[str], version: int, rest: bytes
) -> None:
    assert subscribed_topics(subscription(topics, version) + rest) == frozenset(topics)


@given(
    st.binary(max_size=60)
    | TOPICS.flatmap(lambda topics: st.integers(0, 60).map(lambda end: subscription(topics)[:end]))
)
def test_metadata_of_another_form_gives_no_or_at_most_the_present_topics(metadata: bytes) -> None:
    found = subscribed_topics(metadata)
    assert found is None or len(found) <= len(metadata) // 2


def test_a_count_that_lies_is_no_subscription() -> None:
    assert subscribed_topics(struct.pack(">hi", 0, 0x7FFFFFFF)) is None
    assert subscribed_topics(struct.pack(">hih", 0, 1, -1) + b"trips") is None


def test_a_member_without_metadata_may_read_any_topic() -> None:
    group = Group("g", initial_delay_s=0)
    assert not is_subscribed(group, "trips")
    join(group, protocols=(("range", subscription(["trips"])),))
    assert is_subscribed(group, "trips")
    assert not is_subscribed(group, "others")
    join(group, protocols=(("range", b"topics"),))
    assert is_subscribed(group, "others")
