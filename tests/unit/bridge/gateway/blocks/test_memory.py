"""Blocks stay within the memory that they may take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.store.datastore import Datastore
from tests.support.block_reads import ALL, ENDLESS, EPOCH, fill, records, run


def test_memory_stays_within_its_limit_and_the_least_recently_read_block_goes_first(
    store: Datastore,
) -> None:
    fill(store, 6 * BLOCK_CELLS)

    async def read(executor: ThreadPoolExecutor) -> None:
        size = len(
            (await Blocks(store.engine, executor).read(ALL, 0, 0, BLOCK_CELLS, EPOCH, 1))[0].data
        )
        blocks = Blocks(store.engine, executor, bytes_max=3 * size + size // 2)

        async def block(number: int) -> None:
            await blocks.read(ALL, 0, number * BLOCK_CELLS, (number + 1) * BLOCK_CELLS, EPOCH, 1)
            assert blocks.kept.bytes <= 3 * size + size // 2

        for number in (0, 1, 2, 0, 3):
            await block(number)
        encoded = blocks.encoded
        await block(0)  # was read again before 3 came, so 1 had to go
        assert blocks.encoded == encoded
        await block(1)
        assert blocks.encoded == encoded + 1
        for number in range(6):
            await block(number)
        assert blocks.kept.bytes > 0

    run(read)


def test_a_block_larger_than_all_the_room_is_still_given(store: Datastore) -> None:
    fill(store, BLOCK_CELLS)
    batches = run(
        lambda executor: Blocks(store.engine, executor, bytes_max=1).read(
            ALL, 0, 0, BLOCK_CELLS, EPOCH, ENDLESS
        )
    )
    assert len(records(batches)) == BLOCK_CELLS
