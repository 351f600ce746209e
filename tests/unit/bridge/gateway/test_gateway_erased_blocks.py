"""A body that was being encoded when it was erased is not kept, though nobody else asks for the
block meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.gateway.log import encodings as blocks_module
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.encode import encode_pieces, encode_range
from cellfeed.store.datastore import Datastore
from tests.support.block_reads import ALL, ENDLESS, EPOCH, fill, records

SHARDS = 2


class Held:
    """An encoding that reads the log, and then waits until the test lets it continue."""

    def __init__(self, encode: Any) -> None:
        self._encode = encode
        self.has_read, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        encoded = self._encode(*arguments)
        self.has_read.set()
        assert self.go_on.wait(20)
        return encoded


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=1) as opened:
        fill(opened, BLOCK_CELLS + 10)
        yield opened


@pytest.mark.parametrize("place", [3, BLOCK_CELLS + 3], ids=["a full block", "the open end"])
def test_a_block_read_before_an_erasure_is_neither_given_nor_kept(
    store: Datastore, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    held = Held(encode_range)
    monkeypatch.setattr(blocks_module, "encode_range", held)

    async def read() -> tuple[list[Batch], list[Batch]]:
        with ThreadPoolExecutor(4) as executor:
            blocks = Blocks(store.engine, executor)
            early = asyncio.create_task(blocks.read(ALL, 0, place, BLOCK_CELLS + 10, EPOCH, 1))
            await asyncio.get_running_loop().run_in_executor(None, held.has_read.wait)
            store.engine.erase(store.engine.scan(0, place, 1)[0].row_key)
            blocks.erased(0)
            held.go_on.set()
            return await early, await blocks.read(ALL, 0, place, BLOCK_CELLS + 10, EPOCH, ENDLESS)

    for batches in asyncio.run(read()):
        assert place in [record.offset for record in records(batches) if record.value is None]


def test_an_end_kept_before_an_erasure_is_not_given_with_new_cells_behind_it(
    store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, place = Held(encode_range), BLOCK_CELLS + 3

    async def read() -> tuple[list[Batch], list[Batch]]:
        with ThreadPoolExecutor(4) as executor:
            blocks = Blocks(store.engine, executor)
            await blocks.read(ALL, 0, place, BLOCK_CELLS + 10, EPOCH, ENDLESS)
            fill(store, 10)
            monkeypatch.setattr(blocks_module, "encode_range", held)
            early = asyncio.create_task(
                blocks.read(ALL, 0, place, BLOCK_CELLS + 20, EPOCH, ENDLESS)
            )
            await asyncio.get_running_loop().run_in_executor(None, held.has_read.wait)
            store.engine.erase(store.engine.scan(0, place, 1)[0].row_key)
            blocks.erased(0)
            held.go_on.set()
            return await early, await blocks.read(ALL, 0, place, BLOCK_CELLS + 20, EPOCH, ENDLESS)

    for batches in asyncio.run(read()):
        assert place in [record.offset for record in records(batches) if record.value is None]


def test_ends_of_several_logs_that_were_read_before_an_erasure_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(encode_pieces)
    monkeypatch.setattr(blocks_module, "encode_pieces", held)

    async def read(opened: Datastore) -> list[Batch]:
        ends = {shard: head.watermark for shard, head in opened.heads().items()}
        assert min(ends.values()) > 3
        with ThreadPoolExecutor(4) as executor:
            blocks = Blocks(opened.engine, executor)
            blocks.prepare([(ALL, shard, 0, end, EPOCH) for shard, end in ends.items()])
            await asyncio.get_running_loop().run_in_executor(None, held.has_read.wait)
            opened.engine.erase(opened.engine.scan(1, 3, 1)[0].row_key)
            blocks.erased(1)
            held.go_on.set()
            await asyncio.get_running_loop().run_in_executor(executor, lambda: None)
            await blocks.read(
                ALL, 0, 0, ends[0], EPOCH, ENDLESS
            )  # done with the piece of the other log
            return await blocks.read(ALL, 1, 0, ends[1], EPOCH, ENDLESS)

    with Datastore.open_embedded(tmp_path / "logs", shards=SHARDS) as opened:
        opened.put_cells([(cell_key(number), "BASE", 0, {"n": number}) for number in range(40)])
        assert [
            record.offset for record in records(asyncio.run(read(opened))) if record.value is None
        ] == [3]


def cell_key(number: int) -> UUID:

    return UUID(int=number << 40)
