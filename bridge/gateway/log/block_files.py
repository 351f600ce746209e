"""Kept blocks on disk: a gateway need not encode a block again after a restart, nor when memory has
no room for it.

A folder of its own for each gateway (``DIRECTORY/DATASTORE-NAME``), held by a lock. Two gateways
that are configured with one directory do not meet. Of two processes with one name the second works
without files until the first has ended. One thread makes all changes of files, and no fetch waits
for it; fetches only read.

**Why a block that is read is the right one.** Name and CRC prove its key and its bytes
(``block_file.py``). Its witness proves that the *store* is still the one that it comes from: the
store must have that very cell at the id ``KNOWN - 1``. That is one look at one cell, and files that
were written while the log was as long share it. Two histories of one shard have a common beginning
and differ in every cell behind it: ids are given out in order, and a cell that was put again has
another moment. So a store that has the witness has all that the log showed below KNOWN when the
block was encoded, the block among it. A store that was restored from a backup, replaced by another
one or made again under the same name lacks that cell. While no cell has that id the file is not
read; when another cell has it the file is dropped.

**These change nothing.** A promotion: KNOWN was a watermark, and cells below a watermark are never
taken back (E7). It raises the leader epoch. A block carries the epoch of its encoding, as one in
memory does; a block of an epoch that the shard has not reached is not used. A cell that is put:
blocks are full.

**These drop blocks.** A trim: blocks from below the log's start are dropped. None of them is asked
for, since the first block of the log is asked for from the start on. Erasing:
:meth:`BlockFiles.forget`.

The process dies, or the power fails:

    while a file is written                 a file ``….tmp`` is left, removed at the next start
    between writing and renaming,           nothing is left, or a file that lacks some
    or right after it                       bytes on the disk; it is dropped when it is read,
                                            by its CRC
    while files are dropped                 some of them are left; those that the budget has no
                                            room for go next time; those below the log's start are
                                            not asked for
    between :meth:`BlockFiles.forget`       the file is left; the caller of ``forget`` repeats its
    and the removal of the file             calls after every start

Nothing is synced: a lost file costs one encoding.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

from cellfeed.bridge.gateway.limits import BLOCK_FILES_WAITING_BYTES_MAX
from cellfeed.bridge.gateway.log.batch import Block, block_bytes
from cellfeed.bridge.gateway.log.block_file import (
    BlockKey,
    KeptBlock,
    contents_fingerprint,
    decode_block_file,
    encode_block_file,
    witness_of,
)
from cellfeed.bridge.gateway.log.block_folder import BlockFolder, KeptFile
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.background import SupervisedThread
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import DataDamaged, Trimmed

_log = logging.getLogger("cellfeed.gateway")
_WITNESSES_MAX: Final = 100_000
"""Witnesses that are remembered, some 200 bytes each."""
_WARN_S: Final = 60.0
"""Between two warnings of files that cannot be written."""


@dataclass
class BlockFileCounts:
    """Since the start: blocks read from files; files written, found damaged, found to come from
    another history of the store, dropped for the budget; blocks that were not written because too
    many waited, and writes that failed."""

    read: int = 0
    written: int = 0
    damaged: int = 0
    foreign: int = 0
    evicted: int = 0
    passed_over: int = 0
    failed: int = 0


class BlockFiles:
    """The files of one gateway. Safe to use from several threads: ``read`` may wait for the disk
    and the store, the others wait for nothing."""

    def __init__(self, directory: Path, gateway: str, engine: Engine, bytes_max: int) -> None:
        """Raises InvalidRequest when the directory cannot be used."""
        self._folder = BlockFolder(directory / f"{engine.datastore}-{gateway}")
        self._engine = engine
        self.bytes_max = bytes_max
        self._lock = threading.Condition()
        self._entries: OrderedDict[BlockKey, KeptFile] = OrderedDict()
        """The kept files, least recently used first."""
        self._of_shard: defaultdict[int, set[BlockKey]] = defaultdict(set)
        self._witnesses: dict[tuple[int, int], bytes] = {}
        """Of the store's cells, by shard and KNOWN: cells never change."""
        self._fingerprints: dict[str, str] = {}
        self._work: deque[tuple[int, Callable[[], None]]] = deque()
        """Work of the thread, each with the bytes that wait in it."""
        self._waiting_bytes = 0
        self._forgotten_below: dict[int, int] = {}
        """By shard: blocks that were encoded when less of the log was known than this are not kept
        any more."""
        self._forgotten_before_loading: list[tuple[int, int, int, int]] = []
        self._loaded = self._closing = False
        self._warned_s = -_WARN_S
        self.kept_bytes = 0
        self.counts = BlockFileCounts()
        # Not restarted: a forgotten block must not be found again in the folder. Without it blocks
        # are kept in memory alone.
        self._thread = SupervisedThread("block-files", self._run, restarts=False)
        self._thread.start()

    # --- for fetches ------------------------------------------------------------------------------

    def key(self, topic: Topic, shard: int, start: int, end: int) -> BlockKey:
        """The key of a topic's block."""
        return BlockKey(self.contents_of(topic), shard, start, end)

    def contents_of(self, topic: Topic) -> str:
        """The fingerprint that stands for the topic's records in keys."""
        contents = self._fingerprints.get(topic.content)
        if contents is None:
            contents = self._fingerprints[topic.content] = contents_fingerprint(self._engine, topic)
        return contents

    def kept_by_partition(self) -> dict[str, dict[int, int]]:
        """Bytes in files: by the contents that a key names, then by shard."""
        kept: dict[str, dict[int, int]] = {}
        with self._lock:
            for key, entry in self._entries.items():
                sizes = kept.setdefault(key.contents, {})
                sizes[key.shard] = sizes.get(key.shard, 0) + entry.size
        return kept

    def read(self, key: BlockKey, leader_epoch: int) -> Block | None:
        """The block, or None when it is not there, or not to be believed. Raises Unavailable when
        the store's answer is needed and does not come."""
        with self._lock:
            entry = self._entries.get(key)
        if (
            entry is None
            or (kept := self._open(key, entry)) is None
            or kept.leader_epoch > leader_epoch
        ):
            return None
        witness = self._witness(key.shard, entry.known)
        if witness is None:
            return None  # the log does not show as much just now
        if kept.witness != witness:
            _log.warning(
                "kept block %s comes from another history of the store: it is dropped and encoded"
                " again",
                self._folder.file(key, entry.known),
            )
            self._drop_file(key, entry)
            with self._lock:
                self.counts.foreign += 1
            return None
        with self._lock:
            if self._entries.get(key) is not entry:
                return None  # it was forgotten meanwhile
            self._entries.move_to_end(key)
            self.counts.read += 1
        with suppress(OSError):
            os.utime(self._folder.file(key, entry.known))  # the order of use outlives the process
        return kept.block

    def keep(self, key: BlockKey, block: Block, known: int, leader_epoch: int) -> None:
        """Has the block written: soon, unless too much waits already. ``known``: a watermark of the
        shard from before the block was read from the store."""
        size = block_bytes(block)
        with self._lock:
            if self._closing or key in self._entries or size > self.bytes_max:
                return
            if self._waiting_bytes + size > BLOCK_FILES_WAITING_BYTES_MAX:
                self.counts.passed_over += 1
                return
            self._add_work(lambda: self._write(key, block, known, leader_epoch), size)

    def trim(self, shard: int, log_start: int) -> None:
        """The shard's log starts there: blocks from below are dropped, soon."""
        with self._lock:
            self._add_work(lambda: self._drop_below(shard, log_start))

    def forget(self, shard: int, start: int, end: int, known: int) -> None:
        """Stops reading blocks of any topic with an offset from ``start`` up to, not including,
        ``end``, and removes them soon. Blocks that were encoded when the log was known up to
        ``known`` or more stay. Calls from before the files are listed are applied then, too. The
        same call may be repeated."""
        with self._lock:
            self._forgotten_below[shard] = max(known, self._forgotten_below.get(shard, 0))
            if not self._loaded:
                self._forgotten_before_loading.append((shard, start, end, known))
            for key in list(self._of_shard[shard]):
                if key.start < end and start < key.end and self._entries[key].known < known:
                    self._add_work(partial(self._take_out(key).unlink, missing_ok=True))

    def close(self) -> None:
        """Writes the waiting blocks and gives the folder back."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._thread.join()
        self._folder.close()

    # --- what is there ----------------------------------------------------------------------------

    def _open(self, key: BlockKey, entry: KeptFile) -> KeptBlock | None:
        """The file's block; a file that is not whole is dropped."""
        path = self._folder.file(key, entry.known)
        try:
            return decode_block_file(path.read_bytes(), key, entry.known)
        except FileNotFoundError:
            pass  # dropped meanwhile, or by somebody's hand
        except (OSError, DataDamaged) as error:
            _log.warning("kept block %s is dropped and encoded again: %s", path, error)
            with self._lock:
                self.counts.damaged += 1
        self._drop_file(key, entry)
        return None

    def _drop_file(self, key: BlockKey, entry: KeptFile) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                self._take_out(key)
        with suppress(OSError):
            self._folder.file(key, entry.known).unlink(missing_ok=True)

    def _witness(self, shard: int, known: int) -> bytes | None:
        """Of the store's cell ``known - 1``; None when it has none there."""
        witness = self._witnesses.get((shard, known))
        if witness is None:
            try:
                found = self._engine.scan(shard, known - 1, 1)
            except Trimmed:
                return None
            if not found or found[0].added_id != known - 1:
                return None
            if len(self._witnesses) >= _WITNESSES_MAX:
                self._witnesses.clear()
            witness = self._witnesses[shard, known] = witness_of(found[0])
        return witness

    def _put_in(self, key: BlockKey, entry: KeptFile) -> None:
        self._entries[key] = entry
        self._of_shard[key.shard].add(key)
        self.kept_bytes += entry.size

    def _take_out(self, key: BlockKey) -> Path:
        """Takes a block out of the kept ones; the lock is held. Its file is still to be removed."""
        entry = self._entries.pop(key)
        self._of_shard[key.shard].discard(key)
        self.kept_bytes -= entry.size
        return self._folder.file(key, entry.known)

    # --- the thread -------------------------------------------------------------------------------

    def _add_work(self, work: Callable[[], None], size: int = 0) -> None:
        self._work.append((size, work))
        self._waiting_bytes += size
        self._lock.notify_all()

    def _run(self) -> None:
        if not self._folder.take(self._closes_within):
            return
        self._load()
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._work or self._closing)
                if not self._work:
                    return
                size, work = self._work.popleft()
                self._waiting_bytes -= size
            try:
                work()
            except Exception as error:
                self.counts.failed += 1
                if monotonic() - self._warned_s >= _WARN_S:
                    self._warned_s = monotonic()
                    _log.warning("kept blocks cannot be written just now: %s", error)

    def _closes_within(self, wait_s: float) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: self._closing, wait_s)

    def _load(self) -> None:
        """Finds the kept files, and removes half-written ones."""
        found, superseded = self._folder.listed()
        with self._lock:
            for key, entry in found.items():
                self._put_in(key, entry)
            self._loaded = True
            forgotten, self._forgotten_before_loading = self._forgotten_before_loading, []
        for each in forgotten:
            self.forget(*each)
        for path in superseded:
            with suppress(OSError):
                path.unlink()
        self._make_room(0)

    def _write(self, key: BlockKey, block: Block, known: int, leader_epoch: int) -> None:
        witness = self._witness(key.shard, known)
        if witness is None:
            return
        data = encode_block_file(key, KeptBlock(block, known, leader_epoch, witness))
        if len(data) > self.bytes_max:
            return
        self._make_room(len(data))
        path = self._folder.file(key, known)
        temporary = path.with_suffix(".tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            with self._lock:
                if key not in self._entries and known >= self._forgotten_below.get(key.shard, 0):
                    temporary.replace(path)
                    self._put_in(key, KeptFile(len(data), known))
                    self.counts.written += 1
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Drops the least recently used until ``size`` bytes more are within the budget."""
        while True:
            with self._lock:
                if not self._entries or self.kept_bytes + size <= self.bytes_max:
                    return
                path = self._take_out(next(iter(self._entries)))
                self.counts.evicted += 1
            path.unlink(missing_ok=True)

    def _drop_below(self, shard: int, log_start: int) -> None:
        with self._lock:
            paths = [
                self._take_out(key) for key in list(self._of_shard[shard]) if key.start < log_start
            ]
        for path in paths:
            path.unlink(missing_ok=True)
