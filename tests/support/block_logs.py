"""A log and block files over it that the tests of block files share."""

from __future__ import annotations

import threading
from pathlib import Path

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.log.batch import Block
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import Topic, make_topic
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.canonical_json import canonical
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import Trimmed
from cellfeed.store.histories import History

ALL = make_topic("trips", View(), JsonFormat())

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
    files._work.add(done.set)
    assert done.wait(WAIT_S)


def encoded(log: Log, topic: Topic, start: int, end: int) -> Block:
    return encode_range(log, topic, 0, start, end, 0)  # type: ignore[arg-type]


def opened(directory: Path, log: Log, bytes_max: int = LARGE, name: str = "gateway") -> BlockFiles:
    return BlockFiles(directory, name, log, bytes_max)  # type: ignore[arg-type]


def paths(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.block"))


def keep(files: BlockFiles, log: Log, start: int, end: int, topic: Topic = ALL) -> Block:
    block = encoded(log, topic, start, end)
    files.keep(files.key(topic, 0, start, end), block, log.watermark, 0)
    settle(files)
    return block


def read(files: BlockFiles, start: int, end: int, topic: Topic = ALL) -> Block | None:
    settle(files)
    return files.read(files.key(topic, 0, start, end), 0)


def assert_true(value: bool) -> None:
    assert value
