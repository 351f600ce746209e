"""Files of blocks after restarts and restores, on a disk that fails, and beside other processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cellfeed.bridge.events.compression import compression_named
from cellfeed.bridge.events.envelope import AvroFormat, JsonFormat
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.log import block_files as block_files_module
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.topics.topics import Topic, make_topic
from cellfeed.store.errors import InvalidRequest
from tests.support.block_logs import (
    ALL,
    WAIT_S,
    Log,
    assert_true,
    encoded,
    keep,
    opened,
    paths,
    read,
    settle,
)
from tests.support.waiting import wait_until


def test_a_block_is_there_after_a_restart(log: Log, open_files: Callable[..., BlockFiles]) -> None:
    files = open_files()
    block = keep(files, log, 0, 20)
    assert read(files, 0, 20) == block
    files.close()
    again = open_files()
    assert read(again, 0, 20) == block
    assert (again.counts.read, again.kept_bytes) == (1, files.kept_bytes)


def test_a_restored_store_that_continued_uses_no_blocks_from_before_the_restore(
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
def test_blocks_of_another_encoding_have_another_file_name(
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
    """A newer program, or another schema id: only its encoded bytes show it."""
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


def test_a_failing_disk_only_costs_the_block_files(
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


def test_blocks_of_an_epoch_above_the_shards_are_not_used(
    log: Log, open_files: Callable[..., BlockFiles]
) -> None:
    files = open_files()
    key = files.key(ALL, 0, 0, 20)
    files.keep(key, encoded(log, ALL, 0, 20), 40, 3)
    settle(files)
    assert files.read(key, 2) is None
    assert files.read(key, 3) == files.read(key, 4) == encoded(log, ALL, 0, 20)


def test_the_queue_of_blocks_for_the_disk_is_bounded(
    log: Log, open_files: Callable[..., BlockFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, go_on = open_files(), threading.Event()
    settle(files)
    files._work.add(lambda: assert_true(go_on.wait(WAIT_S)))
    block = [Batch(0, 20, bytes(100_000))]
    monkeypatch.setattr(block_files_module, "BLOCK_FILES_WAITING_BYTES_MAX", 250_000)
    for number in range(5):
        files.keep(files.key(ALL, 0, number, 20), block, 40, 0)
    assert files.counts.passed_over == 3
    go_on.set()
    settle(files)
    assert files.counts.written == 2
