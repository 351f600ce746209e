"""The names of a cell: row keys, column names, ref keys; and where it belongs."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.cells.cell import (
    check_column_name,
    check_ref_key,
    check_row_key,
    microseconds,
    moment,
    new_cell,
)
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.cells.sharding import check_shard, row_key_text, shard_of, shards_of
from cellfeed.store.errors import (
    CellConflict,
    CellfeedError,
    InvalidColumn,
    InvalidRefKey,
    InvalidRowKey,
    OutcomeUnknown,
    UnknownShard,
    error_from_code,
)

ROW = uuid.UUID("2f0a1c6e-3b7d-4f5a-9c8e-0123456789ab")


@pytest.mark.parametrize("given_as", [ROW, str(ROW), str(ROW).upper(), ROW.bytes])
def test_a_row_key_may_be_given_as_uuid_text_or_bytes(given_as: object) -> None:
    assert check_row_key(given_as) == ROW.bytes


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x",
        ROW.hex,
        "{" + str(ROW)[1:],
        str(ROW)[:-1] + "g",
        5,
        None,
        b"x" * 15,
        "urn:uuid:" + str(ROW),
        [ROW],
    ],
)
def test_a_row_key_that_is_no_uuid_is_refused(bad: object) -> None:
    with pytest.raises(InvalidRowKey, match="not a UUID"):
        check_row_key(bad)


@pytest.mark.parametrize(
    "good", ["BASE", "a", "x" * 128, "\u00e9" * 64, "status/2", "a b", "\U0001f695"]
)
def test_column_names_of_one_to_128_bytes_are_allowed(good: str) -> None:
    assert check_column_name(good) == good


@pytest.mark.parametrize(
    "bad",
    ["", "x" * 129, "\u00e9" * 65, "a\x00b", "a\nb", "\x7f", "\x85", "\ud800", None, 5, b"BASE"],
)
def test_invalid_column_names_are_refused(bad: object) -> None:
    with pytest.raises(InvalidColumn, match="column name"):
        check_column_name(bad)


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, 1.0, "1", None, True])
def test_ref_keys_outside_64_bits_or_of_other_types_are_refused(bad: object) -> None:
    with pytest.raises(InvalidRefKey, match="ref key"):
        check_ref_key(bad)


def test_ref_keys_may_use_all_64_bits() -> None:
    assert check_ref_key(2**63 - 1) == 2**63 - 1
    assert check_ref_key(-(2**63)) == -(2**63)


def test_a_new_cell_is_checked_in_every_part() -> None:
    cell = new_cell(ROW, "BASE", 1, {"b": 1, "a": 2})
    assert cell == (ROW.bytes, "BASE", 1, b'{"a":2,"b":1}')
    assert cell.triple == (ROW.bytes, "BASE", 1)


@given(st.integers(0, 2**52))
def test_moments_keep_their_microseconds(created_at_us: int) -> None:
    assert microseconds(moment(created_at_us)) == created_at_us


GOLDEN_SHARDS = {
    "00000000-0000-0000-0000-000000000000": (13, 2941),
    "2f0a1c6e-3b7d-4f5a-9c8e-0123456789ab": (4, 2708),
    "ffffffff-ffff-ffff-ffff-ffffffffffff": (2, 242),
    "6ba7b810-9dad-11d1-80b4-00c04fd430c8": (9, 3529),
    "886313e1-3b8a-5372-9b90-0c9aee199e5d": (7, 2967),
}


@pytest.mark.parametrize("row_key", GOLDEN_SHARDS)
def test_a_row_keys_shard_never_changes(row_key: str) -> None:
    key = uuid.UUID(row_key).bytes
    assert (shard_of(key, 16), shard_of(key, 4096)) == GOLDEN_SHARDS[row_key]


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=60), st.integers(1, 65_536))
def test_a_shard_is_the_partition_of_kafkas_default_partitioner(
    row_keys: list[bytes], shards: int
) -> None:
    from aiokafka.partitioner import murmur2

    expected = [
        (murmur2(str(uuid.UUID(bytes=key)).encode()) & 0x7FFFFFFF) % shards for key in row_keys
    ]
    assert shards_of(row_keys, shards) == expected
    assert [shard_of(key, shards) for key in row_keys] == expected


def test_row_keys_spread_evenly_over_the_shards() -> None:
    counts = [0] * 16
    for shard in shards_of([uuid.uuid5(ROW, str(n)).bytes for n in range(16_000)], 16):
        counts[shard] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_a_row_keys_text_is_its_lower_case_uuid() -> None:
    assert row_key_text(ROW.bytes) == str(ROW).encode()


def test_shards_outside_the_datastore_are_unknown() -> None:
    assert check_shard(15, 16) == 15
    for bad in (16, -1, True, None, 1.0):
        with pytest.raises(UnknownShard, match="0 to 15"):
            check_shard(bad, 16)


def test_digests_differ_when_any_part_of_any_cell_does() -> None:
    base = (0, ROW.bytes, "BASE", 1, b'{"a":1}')
    others = [
        (1, *base[1:]),
        (0, b"x" * 16, *base[2:]),
        (*base[:2], "BAS", *base[3:]),
        (*base[:3], 2, base[4]),
        (*base[:4], b'{"a":2}'),
    ]
    seen = set()
    for cell in [base, *others]:
        digest = ShardDigest()
        digest.add(*cell)
        seen.add(digest.hexdigest())
    assert len(seen) == 6
    digest = ShardDigest()
    digest.add(*base)
    assert (digest.cells, digest.next_added_id) == (1, 1)
    assert digest.hexdigest() == "45d78e8e9390c91353300d4ddd09725394ce331fcd2d7e5a7ee7ce4ddfc848e9"
    with pytest.raises(ValueError, match="ascending"):
        digest.add(*base)


def test_errors_travel_by_their_code() -> None:
    assert isinstance(error_from_code("conflict", "m"), CellConflict)
    assert type(error_from_code("from the future", "m")) is CellfeedError
    assert OutcomeUnknown("m").as_json() == {
        "error": "outcome_unknown",
        "message": "m",
        "retriable": True,
        "definite": False,
    }


def test_every_error_has_a_code_of_its_own() -> None:
    def tree(root: type[CellfeedError]) -> list[type[CellfeedError]]:
        return [root] + [found for child in root.__subclasses__() for found in tree(child)]

    codes = [error.code for error in tree(CellfeedError)]
    assert len(codes) == len(set(codes))
