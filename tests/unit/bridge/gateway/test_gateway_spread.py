"""Which gateway has which partition and which group: every gateway comes to the same answer,
evenly, and little moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.gateway.groups.spread import SLOTS, slot_of, spread

NODES = st.sets(st.integers(1, 40), min_size=1, max_size=9)


@given(st.integers(0, 300), NODES)
def test_every_node_has_an_equal_share(count: int, nodes: set[int]) -> None:
    placed = spread("slot", count, nodes)
    assert len(placed) == count
    assert set(placed) <= nodes
    assert max(Counter(placed).values(), default=0) <= -(-count // len(nodes))
    assert spread("slot", count, sorted(nodes, reverse=True)) == placed, (
        "whatever order the nodes were found in"
    )


def test_spread_without_nodes_is_empty() -> None:
    assert spread("slot", 50, []) == ()


@pytest.mark.parametrize("nodes", range(1, 9))
def test_a_node_that_comes_moves_little_more_than_its_share(nodes: int) -> None:
    before, after = (
        spread("slot", SLOTS, range(1, nodes + 1)),
        spread("slot", SLOTS, range(1, nodes + 2)),
    )
    moved = sum(old != now for old, now in zip(before, after, strict=True))
    assert moved <= 2 * -(-SLOTS // (nodes + 1))


def test_a_groups_slot_is_the_partition_of_consumer_offsets_that_kafka_names() -> None:
    # Java: Utils.abs("billing".hashCode()) % 50, and so on.
    assert slot_of("") == 0
    assert slot_of("a") == 97 % 50
    assert slot_of("billing") == abs(_java_hash("billing")) % 50
    assert slot_of("\U0001f600") == abs(_java_hash("\ud83d\ude00")) % 50
    assert slot_of("polygenelubricants") == 0, (
        "its hash is the smallest number there is, whose magnitude Kafka takes for 0"
    )


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value
