"""Blocks in memory: trimmed and erased cells are
not served from them, with any encoding under way meanwhile, and they stay within their bytes."""

from __future__ import annotations

from cellfeed.bridge.gateway.limits import BLOCK_BYTES_MAX, BLOCK_CELLS
from cellfeed.bridge.gateway.log.batch import Batch, Block
from cellfeed.bridge.gateway.log.kept_blocks import KeptBlocks

LOG, OTHER_SHARD = ("trips", 3), ("trips", 4)
N = BLOCK_CELLS


def block(start: int, end: int, size: int = 10) -> Block:
    """Two batches."""
    middle = (start + end) // 2
    return [Batch(start, middle, b"a" * size), Batch(middle, end, b"b" * size)]


def kept(size: int = 1_000) -> KeptBlocks:
    return KeptBlocks(size)


def test_a_trim_drops_kept_blocks_below_it_in_its_shard_only() -> None:
    blocks = kept()
    for number in range(3):
        blocks.keep_full(LOG, number, block(number * N, (number + 1) * N))
    blocks.keep_full(OTHER_SHARD, 0, block(0, N))
    blocks.keep_end(LOG, block(3 * N, 3 * N + 10))
    blocks.keep_end(OTHER_SHARD, block(N, N + 10))
    blocks.trim(3, N + 1)
    assert [blocks.has_full(LOG, number) for number in range(3)] == [False, False, True]
    assert blocks.has_full(OTHER_SHARD, 0)
    assert blocks.bytes == 40
    assert blocks.end(LOG, 3 * N, 3 * N + 10)[1] == 3 * N + 10
    blocks.trim(3, 3 * N + 5)
    assert blocks.end(LOG, 3 * N + 5, 3 * N + 10) == ([], 3 * N + 5)
    assert blocks.by_partition() == {"trips": {4: 40}}, "nothing of it takes memory"
    assert blocks.end(OTHER_SHARD, N, N + 10)[1] == N + 10


def test_a_block_encoded_before_a_trim_is_not_kept_or_read_after_it() -> None:
    blocks = kept()
    blocks.trim(3, 5)
    blocks.keep_full(LOG, 0, block(0, N))
    assert not blocks.has_full(LOG, 0)
    assert blocks.bytes == 0
    blocks.keep_end(LOG, block(0, 10))
    assert blocks.end(LOG, 5, 10) == ([], 5)


def test_an_erasure_drops_every_block_with_one_of_its_cells() -> None:
    for erased in (0, N // 2, N - 1):
        blocks = kept()
        blocks.keep_full(LOG, 0, block(0, N))
        blocks.keep_full(LOG, 1, block(N, 2 * N))
        blocks.forget(3, erased, erased + 1)
        assert [blocks.has_full(LOG, number) for number in range(2)] == [False, True]
    for erased in (0, 5, 9):
        blocks = kept()
        blocks.keep_end(LOG, block(0, 10))
        blocks.keep_end(OTHER_SHARD, block(0, 10))
        blocks.forget(3, erased, erased + 1)
        assert blocks.end(LOG, 0, 10) == ([], 0)
        assert blocks.end(OTHER_SHARD, 0, 10)[1] == 10
    blocks = kept()
    blocks.keep_end(LOG, block(0, 10))
    blocks.forget(3, 10, 20)
    assert blocks.end(LOG, 0, 10)[1] == 10


def test_the_least_recently_used_full_blocks_go_first() -> None:
    blocks = kept(60)
    for number in range(3):
        blocks.keep_full(LOG, number, block(number * N, (number + 1) * N))
    assert blocks.full(LOG, 0) is not None
    blocks.keep_full(LOG, 3, block(3 * N, 4 * N))
    assert [blocks.has_full(LOG, number) for number in range(4)] == [True, False, True, True]
    assert (blocks.bytes, blocks.hits) == (60, 1)


def test_the_segments_of_an_end_that_begin_earlier_and_end_later_are_kept() -> None:
    blocks = kept()
    blocks.keep_end(LOG, block(0, 10))
    blocks.keep_end(LOG, block(2, 12))  # begins later
    blocks.keep_end(LOG, block(0, 8))  # ends earlier
    assert blocks.end(LOG, 0, 20)[1] == 10
    blocks.keep_end(LOG, block(0, 14))
    assert blocks.end(LOG, 0, 20)[1] == 14
    blocks.keep_end(LOG, block(N, N + 4))  # of the next open block
    assert blocks.end(LOG, N, N + 4)[1] == N + 4


def test_the_end_goes_when_its_block_is_full_and_large_ends_are_not_kept() -> None:
    blocks = kept()
    blocks.keep_end(LOG, block(0, 10))
    blocks.keep_full(LOG, 0, block(0, N))
    assert blocks.end(LOG, 0, 10) == ([], 0)
    blocks.keep_end(LOG, block(N, N + 4, BLOCK_BYTES_MAX))
    assert blocks.end(LOG, N, N + 4) == ([], N)
