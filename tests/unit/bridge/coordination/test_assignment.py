"""Dividing shards: even, as few moves as there can be, and the same on every machine."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.coordination.assignment import ReadAssignments, balance, encode_assignment
from cellfeed.store.limits import SHARDS_STORED_MAX, STATE_VALUE_BYTES_MAX

MEMBERS = st.sets(st.sampled_from("abcdefgh"), min_size=1)


def fewest_moves(partitions: int, members: set[str], current: dict[int, str]) -> int:
    """By counting: of its shards, a member can keep its even share, and as many members as the
    division leaves over can keep one more."""
    floor, larger = divmod(partitions, len(members))
    held = Counter(member for member in current.values() if member in members)
    kept = sum(min(count, floor) for count in held.values()) + min(
        larger, sum(count > floor for count in held.values())
    )
    return partitions - kept


@given(st.integers(0, 200), MEMBERS, st.data())
def test_no_division_that_is_even_moves_fewer_partitions(
    partitions: int, members: set[str], data: st.DataObject
) -> None:
    current = data.draw(
        st.dictionaries(
            st.integers(0, partitions), st.sampled_from("abcdefghxyz"), max_size=partitions
        )
    )
    current = {partition: member for partition, member in current.items() if partition < partitions}
    divided = balance(partitions, sorted(members), current)
    shares = Counter(divided.values())
    assert sorted(divided) == list(range(partitions))
    assert all(
        partitions // len(members) <= shares[member] <= -(-partitions // len(members))
        for member in members
    )
    assert sum(
        current.get(partition) != member for partition, member in divided.items()
    ) == fewest_moves(partitions, members, current)


@given(st.integers(0, 200), MEMBERS, st.sets(st.sampled_from("abcdxyz")), st.data())
def test_an_awaited_member_keeps_its_shards_and_the_others_divide_the_rest_evenly(
    partitions: int, members: set[str], awaited: set[str], data: st.DataObject
) -> None:
    current = data.draw(
        st.dictionaries(
            st.integers(0, partitions), st.sampled_from("abcdefghxyz"), max_size=partitions
        )
    )
    kept = {
        partition: member
        for partition, member in current.items()
        if partition < partitions and member in awaited - members
    }
    divided = balance(partitions, sorted(members), current, awaited)
    assert {
        partition: member for partition, member in divided.items() if member not in members
    } == kept
    shares, rest = (
        Counter(member for member in divided.values() if member in members),
        partitions - len(kept),
    )
    assert sorted(divided) == list(range(partitions))
    assert all(
        rest // len(members) <= shares[member] <= -(-rest // len(members)) for member in members
    )
    assert balance(partitions, sorted(members), divided, awaited) == divided


@given(st.integers(1, 200), MEMBERS, st.permutations("abcdefgh"))
def test_the_order_in_which_members_are_named_is_no_matter(
    partitions: int, members: set[str], order: list[str]
) -> None:
    assert balance(partitions, [name for name in order if name in members], {}) == balance(
        partitions, sorted(members), {}
    )


def test_each_joining_and_leaving_moves_no_more_than_one_share() -> None:
    shards = 4096
    current: dict[int, str] = {}
    members: list[str] = []
    for name in "abcdefgh":
        members.append(name)
        divided = balance(shards, members, current)
        assert sum(
            current.get(shard) not in (None, owner) for shard, owner in divided.items()
        ) <= -(-shards // len(members))
        current = divided
    for name in "cafe":
        members.remove(name)
        divided = balance(shards, members, current)
        gone = sum(owner == name for owner in current.values())
        assert sum(current[shard] != owner for shard, owner in divided.items()) == gone, (
            "only what it had moves"
        )
        current = divided


def test_an_assignment_of_every_shard_fits_an_entry_and_is_read_as_it_was_written() -> None:
    members = [f"triggers-of-a-host-with-a-long-name-{number}.example.com" for number in range(500)]
    assignment = {shard: members[shard * 7 % 500] for shard in range(SHARDS_STORED_MAX)}
    value = encode_assignment(assignment)
    assert len(value) < STATE_VALUE_BYTES_MAX / 2
    read = ReadAssignments()
    assert read.decoded("g", value) == assignment
    assert read.decoded("g", bytes(value)) is read.decoded("g", value), "decoded once"
    assert read.decoded("g", encode_assignment({0: "a"})) == {0: "a"}
    assert read.decoded("g", b"") == {}


@given(st.dictionaries(st.integers(0, 200), st.sampled_from(["a", "b", "7"])))
def test_the_older_form_is_read(assignment: dict[int, str]) -> None:
    older = msgspec.json.encode({str(shard): member for shard, member in assignment.items()})
    assert ReadAssignments().decoded("g", older) == assignment
    assert ReadAssignments().decoded("g", encode_assignment(assignment)) == assignment
