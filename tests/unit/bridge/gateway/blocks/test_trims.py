"""Blocks of a log that is trimmed meanwhile, and of large bodies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cellfeed.bridge.gateway.limits import BLOCK_BYTES_MAX, BLOCK_CELLS
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Trimmed
from tests.support.block_reads import ALL, ENDLESS, EPOCH, assert_contiguous, fill, records, run

LIMIT_SLACK = 3 << 20
"""The batch with which a bound is passed, and the one that was open then."""


@pytest.mark.parametrize(
    "start",
    [1, BLOCK_CELLS - 1, BLOCK_CELLS, BLOCK_CELLS + 7, 2 * BLOCK_CELLS + 9, 2 * BLOCK_CELLS + 20],
)
def test_a_kept_block_from_below_a_trimmed_start_is_dropped_and_the_others_stay(
    store: Datastore, start: int
) -> None:
    end = 2 * BLOCK_CELLS + 20
    fill(store, end)

    async def read(executor: ThreadPoolExecutor) -> None:
        blocks = Blocks(store.engine, executor)
        await blocks.read(ALL, 0, 0, end, EPOCH, ENDLESS)
        before = blocks.kept.bytes
        now = 0
        while now < start:
            now = store.trim(0, start)
        blocks.trim(0, start)
        assert blocks.kept.bytes < before
        blocks.begin(ALL, 0, start, end, EPOCH)
        fill(store, 10)
        for _ in range(2):
            batches = await blocks.read(ALL, 0, start, end + 10, EPOCH, ENDLESS)
            assert_contiguous(batches, start, end + 10)
            assert [record.offset for record in records(batches)] == list(range(start, end + 10))
        assert blocks.kept.bytes == sum(
            sum(len(batch.data) for batch in block) for block in blocks.kept._full.values()
        )

    run(read)


def test_a_block_read_while_its_log_is_trimmed_raises_trimmed_and_is_not_kept(
    store: Datastore,
) -> None:
    fill(store, BLOCK_CELLS + 10)
    scan = store.engine.scan

    async def read(executor: ThreadPoolExecutor) -> None:
        blocks = Blocks(store.engine, executor)

        def trimmed_first(shard: int, location: int, limit: int) -> Any:
            if not trimmed:
                trimmed.append(store.trim(0, 100))
            return scan(shard, location, limit)

        trimmed: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.engine, "scan", trimmed_first)
            with pytest.raises(Trimmed):
                await blocks.read(ALL, 0, 0, BLOCK_CELLS, EPOCH, ENDLESS)
        assert trimmed == [100]
        blocks.trim(0, 100)
        assert blocks.kept.bytes == 0
        assert records(await blocks.read(ALL, 0, 100, BLOCK_CELLS, EPOCH, ENDLESS))[0].offset == 100

    run(read)


LARGE = "x" * 1_000_000


@pytest.mark.parametrize("count", [BLOCK_CELLS + 40, 60])
def test_large_bodies_end_a_block_early_and_every_reader_passes_them(
    store: Datastore, count: int
) -> None:
    fill(store, 10)
    for _ in range(count // 10):
        fill(store, 4, body=LARGE)
        fill(store, 6)
    end = store.heads()[0].watermark

    async def read_all(executor: ThreadPoolExecutor) -> list[int]:
        blocks = Blocks(store.engine, executor)
        offsets: list[int] = []
        for start in (0, end // 2):  # the second from the middle of the block kept for the first
            offset = start
            while offset < end:
                batches = await blocks.read(ALL, 0, offset, end, EPOCH, 4 << 20)
                assert batches[0].start <= offset < batches[0].end
                assert sum(len(batch.data) for batch in batches) <= (4 << 20) + LIMIT_SLACK
                offsets += [record.offset for record in records(batches) if record.offset >= offset]
                offset = batches[-1].end
            assert all(
                sum(len(batch.data) for batch in block) < BLOCK_BYTES_MAX + LIMIT_SLACK
                for block in [*blocks.kept._full.values(), *blocks.kept._ends.values()]
            )
        return offsets

    assert run(read_all) == [*range(end), *range(end // 2, end)]


def test_a_range_of_large_bodies_is_encoded_up_to_the_bound(store: Datastore) -> None:
    fill(store, 40, body=LARGE)
    block = encode_range(store.engine, ALL, 0, 0, 40, EPOCH)
    assert_contiguous(block, 0, block[-1].end)
    assert 16 <= block[-1].end <= 18
    assert encode_range(store.engine, ALL, 0, 20, 40, EPOCH, bytes_max=1)[-1].end in (21, 22)
