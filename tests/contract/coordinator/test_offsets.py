"""Offsets that members commit under their claims (C5, C6)."""

from __future__ import annotations

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.store.errors import StaleWriter
from tests.support.two_clocks import Time


def test_c5_a_void_claim_moves_no_offset_and_writes_nothing_along(
    coordinator: Coordinator, time: Time
) -> None:
    a, b = coordinator.join("g", "a", 10), coordinator.join("g", "b", 30)
    claims = coordinator.claim(a, "trips", [0, 1])
    old, kept = claims[0], claims[1]
    coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(5)}, claims=[old])
    coordinator.commit_offsets("g", {}, claims=[old, kept])
    time.pass_s(11)
    new = coordinator.claim(b, "trips", [0])[0]
    coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(9)}, claims=[new])
    coordinator.renew(a)
    with pytest.raises(StaleWriter, match="taken over"):
        coordinator.commit_offsets(
            "g",
            {("trips", 0): CommittedOffset(6), ("trips", 1): CommittedOffset(1)},
            claims=[old, kept],
            entries={"x": b"1"},
        )
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets("g", {}, claims=[old])
    assert {key: value.offset for key, value in coordinator.fetch_offsets("g").items()} == {
        ("trips", 0): 9
    }
    coordinator.commit_offsets("g", {("trips", 1): CommittedOffset(1)}, claims=[kept])


def test_c6_offsets_are_kept_per_group_with_their_metadata(coordinator: Coordinator) -> None:
    name = "odd/ \u00e9%2F group"
    coordinator.commit_offsets(
        name,
        {("trips", 3): CommittedOffset(7, 2, "m\u00e9ta"), ("trips.BASE", 3): CommittedOffset(1)},
    )
    coordinator.commit_offsets("g", {("trips", 3): CommittedOffset(1)})
    fetched = coordinator.fetch_offsets(name)
    assert {key: (o.offset, o.leader_epoch, o.metadata) for key, o in fetched.items()} == {
        ("trips", 3): (7, 2, "m\u00e9ta"),
        ("trips.BASE", 3): (1, -1, ""),
    }
    assert list(coordinator.fetch_offsets(name, [("trips", 3), ("trips", 4)])) == [("trips", 3)]
    assert list(coordinator.fetch_offsets(name, [("trips", shard) for shard in range(100)])) == [
        ("trips", 3)
    ]
    assert coordinator.groups() == sorted(["g", name])
    assert fetched[("trips", 3)].committed_at_us > 0
    coordinator.delete_offsets(name)
    assert coordinator.groups() == ["g"]
    assert coordinator.fetch_offsets(name) == {}


def test_c6_offsets_of_some_partitions_are_deleted_and_the_others_stay(
    coordinator: Coordinator,
) -> None:
    name, topic = "odd/ \u00e9%2F group", "a/\u00e9%"
    given = {
        ("trips", 3): CommittedOffset(7, 2, "why"),
        ("trips", 4): CommittedOffset(8, 2, "why"),
        (topic, 3): CommittedOffset(9),
    }
    coordinator.commit_offsets(name, given)
    coordinator.commit_offsets("g", given)
    coordinator.delete_offsets(name, [("trips", 3), ("trips", 9), (topic, 3), ("nobodys", 0)])
    assert [
        (key, each.offset, each.metadata) for key, each in coordinator.fetch_offsets(name).items()
    ] == [(("trips", 4), 8, "why")]
    coordinator.delete_offsets(name, [])
    assert coordinator.groups() == sorted(["g", name])
    coordinator.delete_offsets(name, [("trips", 4)])
    assert coordinator.groups() == ["g"], "without any offset it is no group"
    assert coordinator.fetch_offsets("g").keys() == given.keys()
    coordinator.commit_offsets(name, given)
    assert coordinator.fetch_offsets(name).keys() == given.keys()


def test_c6_the_lineage_of_a_group_stays_through_commits_and_deletes(
    coordinator: Coordinator,
) -> None:
    before = coordinator.lineage("g")
    coordinator.commit_offsets("g", {("trips", 3): CommittedOffset(7)})
    coordinator.delete_offsets("g")
    assert coordinator.lineage("g") == before
