"""Blocks of a log give each record once and in order, from every offset and within every limit of
bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.topics.topics import make_topic
from cellfeed.store.datastore import Datastore
from tests.support.block_reads import ALL, ENDLESS, EPOCH, assert_contiguous, fill, records, run

BASE = make_topic("trips.BASE", View("BASE"), JsonFormat())

RARE = make_topic("trips.RARE", View("RARE"), JsonFormat())


@pytest.mark.parametrize(
    "offset",
    [0, 1, BLOCK_CELLS - 1, BLOCK_CELLS, BLOCK_CELLS + 1, 2 * BLOCK_CELLS, 2 * BLOCK_CELLS + 99],
)
def test_from_any_offset_every_record_up_to_the_watermark_is_read_once_and_in_order(
    store: Datastore, offset: int
) -> None:
    end = 2 * BLOCK_CELLS + 100
    fill(store, end)
    batches = run(
        lambda executor: Blocks(store.engine, executor).read(ALL, 0, offset, end, EPOCH, ENDLESS)
    )
    assert_contiguous(batches, offset, end)
    assert [record.offset for record in records(batches)] == list(range(batches[0].start, end))


def test_cells_at_or_above_the_watermark_are_not_given_although_they_are_stored(
    store: Datastore,
) -> None:
    fill(store, BLOCK_CELLS + 50)

    async def read(executor: ThreadPoolExecutor) -> list[list[Batch]]:
        blocks = Blocks(store.engine, executor)
        return [
            await blocks.read(ALL, 0, 0, watermark, EPOCH, ENDLESS)
            for watermark in (7, BLOCK_CELLS, BLOCK_CELLS + 20)
        ]

    for batches, watermark in zip(run(read), (7, BLOCK_CELLS, BLOCK_CELLS + 20), strict=True):
        assert [record.offset for record in records(batches)] == list(range(watermark))


def test_a_topic_of_one_column_has_its_cells_at_their_own_offsets_and_gaps_between(
    store: Datastore,
) -> None:
    end = BLOCK_CELLS + 30
    fill(store, end, lambda number: "RARE" if number in (3, BLOCK_CELLS + 5) else "BASE")

    async def read(executor: ThreadPoolExecutor) -> tuple[list[Batch], list[Batch]]:
        blocks = Blocks(store.engine, executor)
        return await blocks.read(RARE, 0, 0, end, EPOCH, ENDLESS), await blocks.read(
            BASE, 0, 0, end, EPOCH, ENDLESS
        )

    rare, base = run(read)
    assert [record.offset for record in records(rare)] == [3, BLOCK_CELLS + 5]
    assert [record.offset for record in records(base)] == [
        offset for offset in range(end) if offset not in (3, BLOCK_CELLS + 5)
    ]
    # A consumer continues behind the batch's last offset, so a hole at the end has to be covered as
    # well.
    assert_contiguous(rare, 0, end)
    assert_contiguous(base, 0, end)


def test_at_least_one_batch_is_given_and_beyond_it_never_more_than_the_asked_bytes(
    store: Datastore,
) -> None:
    end = 3 * BLOCK_CELLS
    fill(store, end)

    async def read(executor: ThreadPoolExecutor) -> tuple[list[Batch], list[Batch], list[Batch]]:
        blocks = Blocks(store.engine, executor)
        everything = await blocks.read(ALL, 0, 0, end, EPOCH, ENDLESS)
        two = len(everything[0].data) + len(everything[1].data)
        return (
            await blocks.read(ALL, 0, 0, end, EPOCH, 1),
            await blocks.read(ALL, 0, 0, end, EPOCH, two),
            await blocks.read(ALL, 0, 0, end, EPOCH, two - 1),
        )

    one, two, not_two = run(read)
    assert [len(batches) for batches in (one, two, not_two)] == [1, 2, 1]


def test_large_bodies_end_a_batch_early_and_the_largest_is_alone_in_its_batch(
    store: Datastore,
) -> None:
    fill(store, 5, body="x" * 300_000)
    batches = run(
        lambda executor: Blocks(store.engine, executor).read(ALL, 0, 0, 5, EPOCH, ENDLESS)
    )
    assert len(batches) >= 2
    assert all(len(batch.data) < 1 << 20 for batch in batches), (
        "each fits a consumer's default fetch"
    )
    assert_contiguous(batches, 0, 5)
    assert [record.offset for record in records(batches)] == list(range(5))
