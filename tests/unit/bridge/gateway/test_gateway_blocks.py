"""Kept blocks: from every offset, each record once and in order, encoded at most twice, within the
memory that they may take."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.record_batch import Record, decode_record_batches
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.limits import BLOCK_BYTES_MAX, BLOCK_CELLS
from cellfeed.bridge.gateway.log import blocks as blocks_module
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import make_topic
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import Trimmed

T = TypeVar("T")

ALL = make_topic("trips", View(), JsonFormat())
BASE = make_topic("trips.BASE", View("BASE"), JsonFormat())
RARE = make_topic("trips.RARE", View("RARE"), JsonFormat())
ENDLESS = 1 << 40
LIMIT_SLACK = 3 << 20
"""The batch with which a bound is passed, and the one that was open then."""
EPOCH = 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=1) as opened:
        yield opened


def fill(
    store: Datastore, count: int, column: Callable[[int], str] = lambda _: "BASE", body: str = ""
) -> None:
    start = store.heads()[0].watermark
    cells = [
        (uuid.uuid4(), column(number), 0, {"n": number, "text": body})
        for number in range(start, start + count)
    ]
    for first in range(0, count, 1_000):
        store.put_cells(cells[first : first + 1_000])


def run(use: Callable[[ThreadPoolExecutor], Coroutine[Any, Any, T]]) -> T:
    with ThreadPoolExecutor(4) as executor:
        return asyncio.run(use(executor))


def records(batches: list[Batch]) -> list[Record]:
    return list(decode_record_batches(b"".join(batch.data for batch in batches)))


def assert_contiguous(batches: list[Batch], offset: int, end: int) -> None:
    assert batches[0].start <= offset < batches[0].end
    assert all(before.end == after.start for before, after in pairwise(batches))
    assert batches[-1].end == end


@pytest.mark.parametrize(
    "offset",
    [0, 1, BLOCK_CELLS - 1, BLOCK_CELLS, BLOCK_CELLS + 1, 2 * BLOCK_CELLS, 2 * BLOCK_CELLS + 99],
)
def test_from_any_offset_every_record_up_to_the_watermark_comes_once_and_in_order(
    store: Datastore, offset: int
) -> None:
    end = 2 * BLOCK_CELLS + 100
    fill(store, end)
    batches = run(
        lambda executor: Blocks(store.engine, executor).read(ALL, 0, offset, end, EPOCH, ENDLESS)
    )
    assert_contiguous(batches, offset, end)
    assert [record.offset for record in records(batches)] == list(range(batches[0].start, end))


def test_nothing_at_or_above_the_watermark_is_given_although_it_is_stored(store: Datastore) -> None:
    fill(store, BLOCK_CELLS + 50)

    async def read(executor: ThreadPoolExecutor) -> list[list[Batch]]:
        blocks = Blocks(store.engine, executor)
        return [
            await blocks.read(ALL, 0, 0, watermark, EPOCH, ENDLESS)
            for watermark in (7, BLOCK_CELLS, BLOCK_CELLS + 20)
        ]

    for batches, watermark in zip(run(read), (7, BLOCK_CELLS, BLOCK_CELLS + 20), strict=True):
        assert [record.offset for record in records(batches)] == list(range(watermark))


def test_a_topic_of_one_column_has_its_own_cells_at_their_own_offsets_and_holes_for_the_rest(
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


def test_at_least_one_batch_is_given_and_never_more_bytes_than_asked_for_beyond_it(
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


def test_large_bodies_end_a_batch_early_and_the_largest_goes_alone(store: Datastore) -> None:
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


def test_nothing_kept_or_under_way_from_before_an_erasure_is_given_to_who_comes_after_it(
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
        # Encoded from what was there before the erasure, and held until it is heard of.
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


class CountingEngine:
    """Counts how often each cell, by its place in its shard alone, and each range is read from the
    store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.read: dict[int, int] = {}
        self.ranges = 0
        self.scans_of_many = 0

    def scan(self, shard: int, location: int, limit: int) -> Any:
        self.ranges += 1
        cells = self._engine.scan(shard, location, limit)
        for cell in cells:
            if cell.added_id < location + limit:
                self.read[cell.added_id] = self.read.get(cell.added_id, 0) + 1
        return cells

    def commit_group(self, shard: int) -> str:
        return self._engine.commit_group(shard)

    def scan_many(self, ranges: Sequence[LogRange]) -> list[Any]:
        self.scans_of_many += 1
        return [self.scan(*each) for each in ranges]


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


def test_readers_at_different_places_of_the_open_end_see_the_same_records(store: Datastore) -> None:
    """One begins in the middle, one at its start afterwards, one beyond what is kept: nobody gets a
    gap."""
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


def test_the_ends_of_several_logs_are_read_together_once_whoever_asks_for_them(
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


def test_an_error_while_several_logs_are_read_reaches_those_who_wait_and_is_not_kept(
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


@pytest.mark.parametrize(
    "start",
    [1, BLOCK_CELLS - 1, BLOCK_CELLS, BLOCK_CELLS + 7, 2 * BLOCK_CELLS + 9, 2 * BLOCK_CELLS + 20],
)
def test_what_is_kept_from_below_the_start_of_a_trimmed_log_is_dropped_and_the_rest_comes_as_before(
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


def test_a_block_that_is_being_read_while_its_log_is_trimmed_says_so_and_is_not_kept(
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
def test_large_bodies_end_a_block_early_and_every_reader_comes_past_it(
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
        for start in (0, end // 2):  # the second from the middle of what was kept for the first
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
