"""Files of blocks as the gateway uses them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.gateway.log.batch import Batch, Block, block_bytes
from cellfeed.bridge.gateway.log.block_file import contents_fingerprint
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.histories import History
from tests.support.block_logs import (
    ALL,
    LARGE,
    WAIT_S,
    Log,
    assert_true,
    encoded,
    keep,
    paths,
    read,
    settle,
)


def gateway_read(log: Log, files: BlockFiles, bytes_max: int = 1 << 28) -> tuple[list[Batch], int]:
    """Everything that the log shows, and how many pieces were encoded for it."""

    async def run(executor: ThreadPoolExecutor) -> tuple[list[Batch], int]:
        blocks = Blocks(log, executor, bytes_max, files)  # type: ignore[arg-type]
        batches = await blocks.read(ALL, 0, log.log_start, log.watermark, 0, LARGE)
        return batches, blocks.encoded

    with ThreadPoolExecutor(4) as executor:
        return asyncio.run(run(executor))


@pytest.fixture
def long_log() -> Log:
    made = Log()
    made.put(2 * BLOCK_CELLS)
    return made


def test_full_blocks_are_read_from_files_after_a_restart_and_the_store_gives_one_cell(
    long_log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    files = open_files(log=long_log)
    settle(files)
    before, encodings = gateway_read(long_log, files)
    assert encodings == 2
    files.close()
    assert files.counts.written == 2
    again = open_files(log=long_log)
    settle(again)
    long_log.scanned = 0
    assert gateway_read(long_log, again) == (before, 0)
    assert (again.counts.read, long_log.scanned) == (2, 1)


def test_a_block_with_a_damaged_file_is_encoded_again_and_counted(
    long_log: Log, open_files: Callable[..., BlockFiles], tmp_path: Path
) -> None:
    files = open_files(log=long_log)
    before, _ = gateway_read(long_log, files)
    settle(files)
    damaged = paths(tmp_path)[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert gateway_read(long_log, files) == (before, 1)
    assert files.counts.damaged == 1
    settle(files)
    assert gateway_read(long_log, files) == (before, 0)


def test_blocks_beyond_the_memory_limit_are_read_from_files(
    long_log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    files = open_files(log=long_log)
    before, _ = gateway_read(long_log, files, bytes_max=1)
    settle(files)
    assert gateway_read(long_log, files, bytes_max=1) == (before, 0)


def test_a_fetch_does_not_wait_for_the_disk(
    long_log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    files, go_on = open_files(log=long_log), threading.Event()
    settle(files)
    files._work.add(lambda: assert_true(go_on.wait(WAIT_S)))
    batches, encodings = gateway_read(long_log, files)
    assert (batches[-1].end, encodings, files.counts.written) == (long_log.watermark, 2, 0)
    go_on.set()
    settle(files)
    assert files.counts.written == 2


def test_a_trimmed_log_is_read_from_its_start_on_and_the_files_below_go(
    long_log: Log, open_files: Callable[..., BlockFiles], tmp_path: Path
) -> None:
    files = open_files(log=long_log)
    gateway_read(long_log, files)
    settle(files)
    long_log.log_start = 10

    async def run(executor: ThreadPoolExecutor) -> list[Batch]:
        blocks = Blocks(long_log, executor, LARGE, files)  # type: ignore[arg-type]
        blocks.trim(0, 10)
        return await blocks.read(ALL, 0, 10, long_log.watermark, 0, LARGE)

    with ThreadPoolExecutor(4) as executor:
        batches = asyncio.run(run(executor))
    settle(files)
    assert [batch.start for batch in batches] == [10, BLOCK_CELLS]
    assert [path.name for path in paths(tmp_path)] == [
        f"10-{BLOCK_CELLS}-1000.block",
        "500-1000-1000.block",
    ]


@pytest.mark.parametrize(
    "erased", [3, 2 * BLOCK_CELLS + 1], ids=["in a full block", "in the open end"]
)
def test_erased_cells_are_read_again_although_their_block_was_just_being_encoded(
    long_log: Log,
    open_files: Callable[..., BlockFiles],
    monkeypatch: pytest.MonkeyPatch,
    erased: int,
) -> None:
    long_log.put(5)
    files = open_files(log=long_log)
    settle(files)
    encoding, go_on = threading.Event(), threading.Event()

    def slowly(engine: Any, topic: Topic, shard: int, start: int, end: int, *rest: Any) -> Block:
        block = encode_range(engine, topic, shard, start, end, *rest)
        if start <= erased < end and not go_on.is_set():
            encoding.set()
            assert go_on.wait(WAIT_S)
        return block

    monkeypatch.setattr("cellfeed.bridge.gateway.log.encodings.encode_range", slowly)

    async def run(executor: ThreadPoolExecutor) -> tuple[list[Batch], list[Batch]]:
        blocks = Blocks(long_log, executor, LARGE, files)  # type: ignore[arg-type]
        watermark = long_log.watermark
        reading = asyncio.create_task(blocks.read(ALL, 0, 0, watermark, 0, LARGE))
        await asyncio.get_running_loop().run_in_executor(None, encoding.wait, WAIT_S)
        long_log.erase(erased)
        blocks.forget(0, erased, erased + 1, long_log.watermark)
        after = asyncio.create_task(blocks.read(ALL, 0, erased, watermark, 0, 1))
        await asyncio.sleep(0)
        go_on.set()
        return await reading, await after

    with ThreadPoolExecutor(4) as executor:
        reading, after = asyncio.run(run(executor))
    now = encoded(
        long_log,
        ALL,
        erased // BLOCK_CELLS * BLOCK_CELLS,
        min(erased // BLOCK_CELLS * BLOCK_CELLS + BLOCK_CELLS, 2 * BLOCK_CELLS + 5),
    )
    assert [batch.data for batch in reading if batch.start <= erased < batch.end] == [now[0].data]
    if erased < BLOCK_CELLS:
        assert after[0].data == now[0].data
    settle(files)
    kept = [files.read(key, 0) for key in list(files._files._entries)]
    assert all(
        block == encoded(long_log, ALL, block[0].start, block[-1].end) for block in kept if block
    )
    assert all(block_bytes(block) > 0 for block in kept if block)


def test_a_block_encoded_before_an_erasure_is_not_kept_after_it(
    log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    files = open_files()
    known, block = log.watermark, encoded(log, ALL, 0, 20)
    log.erase(3)
    files.forget(0, 3, 4, log.watermark)
    files.keep(files.key(ALL, 0, 0, 20), block, known, 0)
    assert read(files, 0, 20) is None
    assert keep(files, log, 0, 20) == read(files, 0, 20) != block


def test_a_restored_history_has_no_block_of_the_one_before(tmp_path: Path) -> None:
    log = Log()
    before = contents_fingerprint(log, ALL)  # type: ignore[arg-type]
    log.history = History("2" * 32, parent="1" * 32)
    assert contents_fingerprint(log, ALL) != before  # type: ignore[arg-type]
