"""A block is encoded once for all readers, and again after an erasure or an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.gateway.log import encodings as blocks_module
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.store.datastore import Datastore
from tests.support.block_reads import ALL, ENDLESS, EPOCH, CountingEngine, fill, records, run


def test_a_full_block_is_encoded_once_however_often_it_is_read(store: Datastore) -> None:
    fill(store, 2 * BLOCK_CELLS)

    async def read(executor: ThreadPoolExecutor) -> tuple[int, int]:
        blocks = Blocks(store.engine, executor)
        first = await blocks.read(ALL, 0, 0, 2 * BLOCK_CELLS, EPOCH, ENDLESS)
        for _ in range(10):
            again = await blocks.read(ALL, 0, 0, 2 * BLOCK_CELLS, EPOCH, ENDLESS)
            assert all(old.data is new.data for old, new in zip(first, again, strict=True))
        return blocks.encoded, blocks.kept.hits

    assert run(read) == (2, 20)


def test_many_readers_of_the_same_piece_wait_for_one_encoding(
    store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, BLOCK_CELLS + 10)
    encodings, all_asked = [], threading.Event()

    def slowly(*arguments: Any) -> Any:
        encodings.append(arguments[3:5])
        assert all_asked.wait(10)
        return encode_range(*arguments)

    monkeypatch.setattr(blocks_module, "encode_range", slowly)

    async def read(executor: ThreadPoolExecutor) -> list[list[Batch]]:
        blocks = Blocks(store.engine, executor)
        readers = [
            asyncio.create_task(blocks.read(ALL, 0, 0, BLOCK_CELLS + 10, EPOCH, ENDLESS))
            for _ in range(20)
        ]
        await asyncio.sleep(0)
        all_asked.set()
        return await asyncio.gather(*readers)

    found = run(read)
    assert encodings == [(0, BLOCK_CELLS), (BLOCK_CELLS, BLOCK_CELLS + 10)]
    assert all(batches == found[0] for batches in found)


def test_a_reader_that_is_given_up_takes_the_encoding_away_from_nobody(
    store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, BLOCK_CELLS)
    go_on = threading.Event()

    def slowly(*arguments: Any) -> Any:
        assert go_on.wait(10)
        return encode_range(*arguments)

    monkeypatch.setattr(blocks_module, "encode_range", slowly)

    async def read(executor: ThreadPoolExecutor) -> list[Batch]:
        blocks = Blocks(store.engine, executor)
        leaving, staying = (
            asyncio.create_task(blocks.read(ALL, 0, 0, BLOCK_CELLS, EPOCH, ENDLESS))
            for _ in range(2)
        )
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        go_on.set()
        return await staying

    assert len(records(run(read))) == BLOCK_CELLS


def test_a_block_kept_or_under_way_before_an_erasure_is_not_given_after_it(
    store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = BLOCK_CELLS + 10
    fill(store, end)
    victims = [store.engine.scan(0, added_id, 1)[0] for added_id in (3, BLOCK_CELLS + 3)]
    hold, go_on = threading.Event(), threading.Event()
    go_on.set()

    def held(*arguments: Any) -> Any:
        block = encode_range(*arguments)
        hold.set()
        assert go_on.wait(10)
        return block

    monkeypatch.setattr(blocks_module, "encode_range", held)

    async def read(executor: ThreadPoolExecutor) -> tuple[list[Batch], list[Batch], list[Batch]]:
        blocks = Blocks(store.engine, executor)
        kept = await blocks.read(ALL, 0, 0, end, EPOCH, ENDLESS)
        blocks.erased(0)
        assert blocks.kept.bytes == 0
        # Encoded from the bodies before the erasure, and held until the gateway hears of it.
        hold.clear()
        go_on.clear()
        early = asyncio.create_task(blocks.read(ALL, 0, 0, end, EPOCH, ENDLESS))
        await asyncio.get_running_loop().run_in_executor(None, hold.wait)
        for victim in victims:
            store.engine.erase(victim.row_key)
        blocks.erased(0)
        late = asyncio.create_task(blocks.read(ALL, 0, 0, end, EPOCH, ENDLESS))
        await asyncio.sleep(0.01)
        go_on.set()
        await early
        return kept, await late, await blocks.read(ALL, 0, 0, end, EPOCH, ENDLESS)

    kept, late, again = run(read)
    assert [record.offset for record in records(kept) if record.value is None] == []
    for batches in (late, again):
        assert [record.offset for record in records(batches) if record.value is None] == [
            3,
            BLOCK_CELLS + 3,
        ]


@pytest.mark.parametrize("at_once", [False, True])
def test_an_encoding_that_failed_is_tried_again_by_the_next_reader(
    store: Datastore, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """``at_once``: the encoding has ended when it is asked for, as on Python 3.14 where a thread is
    faster than the loop."""
    fill(store, 10)
    failing = True

    def sometimes(*arguments: Any) -> Any:
        if failing:
            raise OSError("disk")
        return encode_range(*arguments)

    monkeypatch.setattr(blocks_module, "encode_range", sometimes)

    async def read(executor: ThreadPoolExecutor) -> list[Batch]:
        nonlocal failing
        loop = asyncio.get_running_loop()

        def ended(_executor: object, call: Callable[..., Any], *given: Any) -> Any:
            future = loop.create_future()
            try:
                future.set_result(call(*given))
            except OSError as error:
                future.set_exception(error)
            return future

        if at_once:
            loop.run_in_executor = ended  # type: ignore[assignment, method-assign]
        blocks = Blocks(store.engine, executor)
        with pytest.raises(OSError, match="disk"):
            await blocks.read(ALL, 0, 0, 10, EPOCH, ENDLESS)
        failing = False
        return await blocks.read(ALL, 0, 0, 10, EPOCH, ENDLESS)

    assert len(records(run(read))) == 10


def test_a_new_cell_is_encoded_once_at_the_end_and_once_in_its_block_however_many_follow(
    store: Datastore,
) -> None:
    engine = CountingEngine(store.engine)

    async def follow(executor: ThreadPoolExecutor) -> None:
        blocks = Blocks(engine, executor)  # type: ignore[arg-type]
        positions = [0, 0, 0]
        while positions[0] < BLOCK_CELLS + 60:
            fill(store, 20)
            watermark = store.heads()[0].watermark
            for reader, offset in enumerate(positions):
                batches = await blocks.read(ALL, 0, offset, watermark, EPOCH, ENDLESS)
                assert [
                    record.offset for record in records(batches) if record.offset >= offset
                ] == list(range(offset, watermark))
                positions[reader] = watermark

    run(follow)
    assert set(engine.read) == set(range(BLOCK_CELLS + 60))
    assert max(engine.read.values()) <= 2
