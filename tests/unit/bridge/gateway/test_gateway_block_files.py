"""Kept blocks in files: after any event of the files, the process and the store, a block that is
read is the one that the store would give."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cellfeed.bridge.events.compression import compression_named
from cellfeed.bridge.events.envelope import AvroFormat, JsonFormat
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.gateway.log import block_files as block_files_module
from cellfeed.bridge.gateway.log.batch import Batch, Block, block_bytes
from cellfeed.bridge.gateway.log.block_file import contents_fingerprint
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import Topic, make_topic
from cellfeed.store.cells.body_codec import encode_body
from cellfeed.store.cells.canonical_json import canonical
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import InvalidRequest, Trimmed
from cellfeed.store.histories import History
from tests.support.waiting import wait_until

ALL = make_topic("trips", View(), JsonFormat())
RARE = make_topic("trips.RARE", View("RARE"), JsonFormat())
TOPICS = [ALL, RARE]
LARGE = 1 << 30
WAIT_S = 60.0


class Log:
    """One shard as a store keeps it: cells in order, erased in place, trimmed, restored. No two
    puts have one moment."""

    datastore = "trips"
    shards = 1
    history = History("1" * 32)

    def __init__(self) -> None:
        self.cells: list[StoredCell] = []
        self.log_start = 0
        self.clock_us = 1_700_000_000_000_000
        self.erased: list[tuple[int, int]] = []
        """Which id, and the first watermark that shows it."""
        self.scanned = 0

    @property
    def watermark(self) -> int:
        return len(self.cells)

    def put(self, count: int) -> None:
        for _ in range(count):
            self.clock_us += 1
            number = self.watermark
            body = encode_body(canonical({"n": number, "at": self.clock_us}))
            # Another history may well have the same rows again.
            self.cells.append(
                StoredCell(
                    number,
                    bytes([number % 7]) * 16,
                    "RARE" if number % 5 == 0 else "BASE",
                    number,
                    self.clock_us,
                    body,
                )
            )

    def erase(self, added_id: int) -> None:
        self.cells[added_id] = self.cells[added_id]._replace(body=encode_body(b"{}"))
        self.put(1)
        self.erased.append((added_id, self.watermark))

    def restored(self, length: int) -> None:
        """As from a backup of when the log was that long: rows that were erased since are erased
        again, as anybody who restores a store must do."""
        del self.cells[length:]
        self.log_start = min(self.log_start, length)
        again = [
            added_id for added_id, known in self.erased if known > length and added_id < length
        ]
        self.erased = [each for each in self.erased if each[1] <= length]
        for added_id in again:
            self.erase(added_id)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        assert shard == 0
        if location < self.log_start:
            raise Trimmed(f"the log starts at {self.log_start}")
        found = self.cells[location : location + limit]
        self.scanned += len(found)
        return found


def settle(files: BlockFiles) -> None:
    """Returns when all that was asked for is done."""
    done = threading.Event()
    with files._lock:
        files._add_work(done.set)
    assert done.wait(WAIT_S)


def kill(files: BlockFiles) -> None:
    """A task that waits is never done; the folder is free."""
    with files._lock:
        files._work.clear()
    files.close()


def encoded(log: Log, topic: Topic, start: int, end: int) -> Block:
    return encode_range(log, topic, 0, start, end, 0)  # type: ignore[arg-type]


def opened(directory: Path, log: Log, bytes_max: int = LARGE, name: str = "gateway") -> BlockFiles:
    return BlockFiles(directory, name, log, bytes_max)  # type: ignore[arg-type]


def paths(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.block"))


@pytest.fixture
def log() -> Log:
    made = Log()
    made.put(40)
    return made


@pytest.fixture
def open_files(tmp_path: Path, log: Log) -> Iterator[Callable[..., BlockFiles]]:
    made: list[BlockFiles] = []

    def make(**arguments: Any) -> BlockFiles:
        made.append(opened(tmp_path, arguments.pop("log", log), **arguments))
        return made[-1]

    yield make
    for each in made:
        if each._thread.is_alive():
            each.close()


def keep(files: BlockFiles, log: Log, start: int, end: int, topic: Topic = ALL) -> Block:
    block = encoded(log, topic, start, end)
    files.keep(files.key(topic, 0, start, end), block, log.watermark, 0)
    settle(files)
    return block


def read(files: BlockFiles, start: int, end: int, topic: Topic = ALL) -> Block | None:
    settle(files)
    return files.read(files.key(topic, 0, start, end), 0)


class AnyOrder(RuleBasedStateMachine):
    """Puts, reads, kills, damage, erasing, trims, restores in any order."""

    @initialize(bytes_max=st.sampled_from([0, 2_000, 8_000, LARGE]))
    def begin(self, bytes_max: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="block-files-"))
        self.bytes_max = bytes_max
        self.log = Log()
        self.files = opened(self.directory, self.log, bytes_max)

    def teardown(self) -> None:
        self.files.close()
        shutil.rmtree(self.directory)

    def start_again(self) -> None:
        self.files = opened(self.directory, self.log, self.bytes_max)
        for (
            added_id,
            known,
        ) in self.log.erased:  # as anybody who reports what was erased does at a start
            self.files.forget(0, added_id, added_id + 1, known)
        self.files.trim(0, self.log.log_start)

    @rule(count=st.integers(1, 12))
    def put(self, count: int) -> None:
        self.log.put(count)

    @rule(topic=st.sampled_from(TOPICS), first=st.integers(0, 9))
    def keep(self, topic: Topic, first: int) -> None:
        start, end = max(4 * first, self.log.log_start), 4 * first + 4
        if start < end <= self.log.watermark:
            self.files.keep(
                self.files.key(topic, 0, start, end),
                encoded(self.log, topic, start, end),
                self.log.watermark,
                0,
            )

    @rule(topic=st.sampled_from(TOPICS))
    def keep_and_read_all(self, topic: Topic) -> None:
        for first in range(10):
            self.keep(topic, first)
        settle(self.files)
        self.all_that_is_read_is_what_the_store_has()

    @rule()
    def wait(self) -> None:
        settle(self.files)

    @rule()
    def restart(self) -> None:
        self.files.close()
        self.start_again()

    @rule()
    def kill(self) -> None:
        kill(self.files)
        self.start_again()

    @rule(
        which=st.integers(0, 99),
        other=st.integers(0, 99),
        kind=st.sampled_from(["bit", "cut", "zeros", "other", "longer", "torn write"]),
        share=st.floats(0, 1, exclude_max=True),
        bit=st.integers(0, 7),
    )
    def damage(self, which: int, other: int, kind: str, share: float, bit: int) -> None:
        # What is drawn must not depend on the files: which of them are there is a matter of
        # threads.
        settle(self.files)
        there = paths(self.directory)
        if not there:
            return
        path = there[which % len(there)]
        content = bytearray(path.read_bytes())
        at = int(len(content) * share)
        match kind:
            case "bit" if content:
                content[at] ^= 1 << bit
            case "cut":
                del content[at:]
            case "zeros":
                content = bytearray(len(content))
            case "other":
                content = bytearray(there[other % len(there)].read_bytes())
            case "longer":
                content += b"\x00"
            case "torn write":
                path = path.with_suffix(".tmp")
        path.write_bytes(content)

    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        if self.log.watermark > self.log.log_start:
            self.log.erase(data.draw(st.integers(self.log.log_start, self.log.watermark - 1)))
            self.files.forget(
                0, self.log.erased[-1][0], self.log.erased[-1][0] + 1, self.log.erased[-1][1]
            )

    @rule(data=st.data(), first=st.integers(0, 9))
    def erase_while_it_is_encoded(self, data: st.DataObject, first: int) -> None:
        start, end, known = max(4 * first, self.log.log_start), 4 * first + 4, self.log.watermark
        if start < end <= known:
            block = encoded(self.log, ALL, start, end)
            self.log.erase(data.draw(st.integers(start, end - 1)))
            self.files.forget(
                0, self.log.erased[-1][0], self.log.erased[-1][0] + 1, self.log.erased[-1][1]
            )
            self.files.keep(self.files.key(ALL, 0, start, end), block, known, 0)

    @rule(data=st.data())
    def erase_while_nothing_runs(self, data: st.DataObject) -> None:
        if self.log.watermark > self.log.log_start:
            kill(self.files)
            self.log.erase(data.draw(st.integers(self.log.log_start, self.log.watermark - 1)))
            self.start_again()

    @rule(share=st.floats(0, 1), count=st.integers(0, 30))
    def restore(self, share: float, count: int) -> None:
        """The store returns as it was some time ago (at 0: it is made again), and continues."""
        self.files.close()
        self.log.restored(int(self.log.watermark * share))
        self.log.put(count)
        self.start_again()

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.log.log_start = max(self.log.log_start, int(self.log.watermark * share))
        self.files.trim(0, self.log.log_start)

    @invariant()
    def all_that_is_read_is_what_the_store_has(self) -> None:
        for topic in TOPICS if hasattr(self, "files") else []:
            for first in range(10):
                start, end = max(4 * first, self.log.log_start), 4 * first + 4
                if start < end <= self.log.watermark:
                    block = self.files.read(self.files.key(topic, 0, start, end), 0)
                    assert block is None or block == encoded(self.log, topic, start, end)

    @invariant()
    def the_budget_is_kept(self) -> None:
        if hasattr(self, "files"):
            assert self.files.kept_bytes <= max(self.bytes_max, 0)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_block_is_there_after_a_restart(log: Log, open_files: Callable[..., BlockFiles]) -> None:
    files = open_files()
    block = keep(files, log, 0, 20)
    assert read(files, 0, 20) == block
    files.close()
    again = open_files()
    assert read(again, 0, 20) == block
    assert (again.counts.read, again.kept_bytes) == (1, files.kept_bytes)


def test_a_store_that_was_restored_and_went_on_has_none_of_the_blocks_from_before(
    log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    files = open_files()
    keep(files, log, 0, 20)
    files.close()
    log.restored(10)
    log.put(30)
    again = open_files()
    assert read(again, 0, 20) is None
    assert (again.counts.foreign, again.kept_bytes) == (1, 0)
    assert keep(again, log, 0, 20) == read(again, 0, 20)


@pytest.mark.parametrize(
    "other",
    [
        make_topic("trips", View(), AvroFormat(1)),
        make_topic("trips", View(), AvroFormat(2)),
        make_topic("trips", View("BASE"), JsonFormat()),
        make_topic("trips", View(fields=["n"]), JsonFormat()),
        make_topic("trips", View(), JsonFormat(), compression=compression_named("zstd")),
        make_topic("trips", View(), JsonFormat(), compression=compression_named("gzip")),
    ],
)
def test_what_is_encoded_otherwise_has_another_name(
    log: Log, open_files: Callable[..., BlockFiles], other: Topic
) -> None:
    files = open_files()
    keep(files, log, 0, 20)
    files.close()
    again = open_files()
    assert again.key(other, 0, 0, 20).contents != files.key(ALL, 0, 0, 20).contents
    assert read(again, 0, 20, other) is None


def test_a_format_whose_bytes_changed_has_another_name(
    log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    """A newer program, or another schema id: nothing says so but what it encodes."""
    files = open_files()
    avro = [make_topic("trips", View(), AvroFormat(schema_id)) for schema_id in (1, 2)]
    assert avro[0].content == avro[1].content
    first = files.key(avro[0], 0, 0, 20)
    files.close()
    assert open_files().key(avro[1], 0, 0, 20) != first


def test_the_least_recently_used_goes_first_also_after_a_restart(
    log: Log, open_files: Callable[..., BlockFiles], tmp_path: Path
) -> None:
    files = open_files()
    for start in (0, 10, 20):
        keep(files, log, start, start + 10)
    for number, path in enumerate(
        paths(tmp_path)
    ):  # filesystems' clocks are coarse: uses are a second apart
        os.utime(path, (1_000 + number, 1_000 + number))
    assert read(files, 0, 10) is not None
    files.close()
    size = max(path.stat().st_size for path in paths(tmp_path))
    again = open_files(bytes_max=2 * size + size // 2)
    assert [read(again, start, start + 10) is not None for start in (0, 10, 20)] == [
        True,
        False,
        True,
    ]
    keep(again, log, 30, 40)
    assert [read(again, start, start + 10) is not None for start in (0, 10, 20, 30)] == [
        False,
        False,
        True,
        True,
    ]
    assert again.counts.evicted == 2
    assert (
        sum(path.stat().st_size for path in paths(tmp_path))
        == again.kept_bytes
        <= 2 * size + size // 2
    )


def test_of_two_processes_with_one_name_the_second_has_the_files_when_the_first_has_ended(
    log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    first = open_files()
    block = keep(first, log, 0, 20)
    second = open_files()
    second.keep(second.key(ALL, 0, 20, 40), encoded(log, ALL, 20, 40), 40, 0)
    assert second.read(second.key(ALL, 0, 0, 20), 0) is None
    assert not second._loaded
    first.close()
    wait_until(
        lambda: second.read(second.key(ALL, 0, 0, 20), 0) == block,
        "the second process has the files",
    )
    assert read(second, 20, 40) == encoded(log, ALL, 20, 40)


def test_two_gateways_with_one_directory_have_folders_of_their_own(
    log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    one, other = open_files(name="gateway-1"), open_files(name="gateway-2")
    keep(one, log, 0, 20)
    assert read(other, 0, 20) is None
    assert keep(other, log, 20, 40) == read(other, 20, 40)
    assert read(one, 20, 40) is None


def test_a_directory_that_cannot_be_used_is_refused(log: Log, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="disk_bytes: 0"):
        opened(tmp_path / "file", log)


def test_a_disk_that_fails_costs_no_more_than_the_files(
    log: Log, open_files: Callable[..., BlockFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        keep(files, log, 0, 20)
    assert (files.counts.failed, files.kept_bytes, read(files, 0, 20)) == (1, 0, None)
    assert keep(files, log, 0, 20) == read(files, 0, 20)


def test_blocks_of_an_epoch_that_the_shard_has_not_come_to_are_not_taken(
    log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    files = open_files()
    key = files.key(ALL, 0, 0, 20)
    files.keep(key, encoded(log, ALL, 0, 20), 40, 3)
    settle(files)
    assert files.read(key, 2) is None
    assert files.read(key, 3) == files.read(key, 4) == encoded(log, ALL, 0, 20)


def test_what_waits_for_the_disk_is_bounded(
    log: Log, open_files: Callable[..., BlockFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, go_on = open_files(), threading.Event()
    settle(files)
    with files._lock:
        files._add_work(lambda: assert_true(go_on.wait(WAIT_S)))
    block = [Batch(0, 20, bytes(100_000))]
    monkeypatch.setattr(block_files_module, "BLOCK_FILES_WAITING_BYTES_MAX", 250_000)
    for number in range(5):
        files.keep(files.key(ALL, 0, number, 20), block, 40, 0)
    assert files.counts.passed_over == 3
    go_on.set()
    settle(files)
    assert files.counts.written == 2


def assert_true(value: bool) -> None:
    assert value


# --- as the gateway uses them ---------------------------------------------------------------------


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


def test_after_a_restart_full_blocks_come_from_files_and_the_store_is_asked_for_one_cell(
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


def test_a_damaged_file_is_encoded_anew_and_counted(
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


def test_what_memory_has_no_room_for_is_read_from_files(
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
    with files._lock:
        files._add_work(lambda: assert_true(go_on.wait(WAIT_S)))
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
def test_what_was_erased_is_read_anew_also_when_it_was_just_being_encoded(
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

    monkeypatch.setattr("cellfeed.bridge.gateway.log.blocks.encode_range", slowly)

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
    kept = [files.read(key, 0) for key in list(files._entries)]
    assert all(
        block == encoded(long_log, ALL, block[0].start, block[-1].end) for block in kept if block
    )
    assert all(block_bytes(block) > 0 for block in kept if block)


def test_what_was_encoded_before_something_was_erased_is_not_kept_afterwards(
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
