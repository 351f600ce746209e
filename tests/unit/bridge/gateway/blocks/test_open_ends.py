"""The open ends of several logs are read together, and blocks are begun ahead."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange
from tests.support.block_reads import ALL, ENDLESS, EPOCH, CountingEngine, fill, records, run


def test_readers_at_different_places_of_the_open_end_see_the_same_records(store: Datastore) -> None:
    """One begins in the middle, one at its start afterwards, one beyond the kept blocks: nobody
    gets a gap."""
    fill(store, BLOCK_CELLS + 40)

    async def read(executor: ThreadPoolExecutor) -> None:
        blocks = Blocks(store.engine, executor)
        watermark = BLOCK_CELLS + 40
        for offset in (BLOCK_CELLS + 30, BLOCK_CELLS, BLOCK_CELLS + 39, BLOCK_CELLS + 5, 3):
            for end in (watermark, BLOCK_CELLS + 40):
                batches = await blocks.read(ALL, 0, offset, end, EPOCH, ENDLESS)
                assert [
                    record.offset for record in records(batches) if record.offset >= offset
                ] == list(range(offset, end))

    run(read)


def test_the_ends_of_several_logs_are_read_together_once_for_all_requests(
    tmp_path: Path,
) -> None:
    with Datastore.open_embedded(tmp_path / "several", shards=8) as several:
        several.put_cells([(uuid.uuid4(), "BASE", 0, {"n": number}) for number in range(200)])
        engine = CountingEngine(several.engine)
        heads = several.heads()
        wanted = [(ALL, shard, 0, head.watermark, EPOCH) for shard, head in heads.items()]

        async def read(executor: ThreadPoolExecutor) -> list[list[Batch]]:
            blocks = Blocks(engine, executor)  # type: ignore[arg-type]
            blocks.prepare(wanted)
            blocks.prepare(wanted)
            found = [
                await blocks.read(topic, shard, offset, watermark, EPOCH, ENDLESS)
                for topic, shard, offset, watermark, _ in wanted
            ]
            blocks.prepare(wanted)
            return found

        found = run(read)
        assert engine.scans_of_many == 1
        assert engine.ranges == len(wanted), "what was read together was read again, one by one"
        assert [[record.offset for record in records(batches)] for batches in found] == [
            list(range(head.watermark)) for head in heads.values()
        ]


def test_an_error_while_several_logs_are_read_reaches_every_waiter_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Datastore.open_embedded(tmp_path / "several", shards=2) as several:
        several.put_cells([(uuid.uuid4(), "BASE", 0, {"n": number}) for number in range(50)])
        wanted = [(ALL, shard, 0, head.watermark, EPOCH) for shard, head in several.heads().items()]

        def fails(_ranges: Sequence[LogRange]) -> list[Any]:
            raise OSError("the disk is gone")

        async def read(executor: ThreadPoolExecutor) -> list[list[Batch]]:
            blocks = Blocks(several.engine, executor)
            with monkeypatch.context() as patch:
                patch.setattr(several.engine, "scan_many", fails)
                blocks.prepare(wanted)
                with pytest.raises(OSError, match="disk"):
                    await blocks.read(ALL, 0, 0, wanted[0][3], EPOCH, ENDLESS)
            blocks.prepare(wanted)
            return [
                await blocks.read(topic, shard, offset, watermark, EPOCH, ENDLESS)
                for topic, shard, offset, watermark, _ in wanted
            ]

        assert sum(len(records(batches)) for batches in run(read)) == 50


def test_a_block_that_was_begun_ahead_is_encoded_once(store: Datastore) -> None:
    fill(store, BLOCK_CELLS + 10)
    engine = CountingEngine(store.engine)

    async def read(executor: ThreadPoolExecutor) -> list[Batch]:
        blocks = Blocks(engine, executor)  # type: ignore[arg-type]
        for offset in (0, 5, BLOCK_CELLS, BLOCK_CELLS + 1):
            blocks.begin(ALL, 0, offset, BLOCK_CELLS + 10, EPOCH)
        await asyncio.sleep(0)
        found = await blocks.read(ALL, 0, 0, BLOCK_CELLS, EPOCH, ENDLESS)
        blocks.begin(ALL, 0, 0, BLOCK_CELLS + 10, EPOCH)
        return found

    assert [record.offset for record in records(run(read))] == list(range(BLOCK_CELLS))
    assert engine.read == dict.fromkeys(range(BLOCK_CELLS), 1)


def test_a_block_that_could_not_be_begun_ahead_is_read_when_it_is_asked_for(
    store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, BLOCK_CELLS)
    failed = threading.Event()

    def fails(*_range: int) -> list[Any]:
        failed.set()
        raise OSError("the disk is gone")

    async def read(executor: ThreadPoolExecutor) -> list[Batch]:
        blocks = Blocks(store.engine, executor)
        with monkeypatch.context() as patch:
            patch.setattr(store.engine, "scan", fails)
            blocks.begin(ALL, 0, 0, BLOCK_CELLS, EPOCH)
            await asyncio.gather(*blocks._begun_ahead, return_exceptions=True)
        assert failed.is_set()
        return await blocks.read(ALL, 0, 0, BLOCK_CELLS, EPOCH, ENDLESS)

    assert len(records(run(read))) == BLOCK_CELLS
