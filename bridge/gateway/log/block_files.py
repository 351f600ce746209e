"""Kept blocks on disk: a gateway need not encode a block again after a restart, nor when memory has
no room for it.

One thread makes all changes of files (``file_work.py``), and no fetch waits for it; fetches only
read.

**A block that is read is the right one**: its file is whole (``block_file.py``), and the store is
still the one that it comes from (:mod:`cellfeed.bridge.gateway.log.block_origin`).

**These change nothing.** A promotion: KNOWN was a watermark, and cells below a watermark are never
taken back (E7). It raises the leader epoch. A block carries the epoch of its encoding, as one in
memory does; a block of an epoch that the shard has not reached is not used. A cell that is put:
blocks are full.

**These drop blocks.** A trim: blocks from below the log's start are dropped. None of them is asked
for, since the first block of the log is asked for from the start on. Erasing:
:meth:`BlockFiles.forget`.

The process dies, or the power fails (while a file is written: ``block_folder.py``):

    while files are dropped                 some of them are left; those that the budget has no
                                            room for go next time; those below the log's start are
                                            not asked for
    between :meth:`BlockFiles.forget`       the file is left; the caller of ``forget`` repeats its
    and the removal of the file             calls after every start

Nothing is synced: a lost file costs one encoding.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from cellfeed.bridge.gateway.limits import BLOCK_FILES_WAITING_BYTES_MAX
from cellfeed.bridge.gateway.log.batch import Block, block_bytes
from cellfeed.bridge.gateway.log.block_file import (
    BlockKey,
    KeptBlock,
    decode_block_file,
    encode_block_file,
)
from cellfeed.bridge.gateway.log.block_file_counts import BlockFileCounts
from cellfeed.bridge.gateway.log.block_folder import BlockFolder, KeptFile
from cellfeed.bridge.gateway.log.block_origin import BlockOrigin
from cellfeed.bridge.gateway.log.file_index import FileIndex
from cellfeed.bridge.gateway.log.file_work import FileWork
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import DataDamaged

_log = logging.getLogger("cellfeed.gateway")


class BlockFiles:
    """The files of one gateway. Safe to use from several threads: ``read`` may wait for the disk
    and the store, the others wait for nothing."""

    def __init__(self, directory: Path, gateway: str, engine: Engine, bytes_max: int) -> None:
        """Raises InvalidRequest when the directory cannot be used."""
        self._folder = BlockFolder(directory / f"{engine.datastore}-{gateway}")
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._files = FileIndex()
        self.origin = BlockOrigin(engine)
        self._forgotten_below: dict[int, int] = {}
        """By shard: blocks that were encoded when less of the log was known than this are not kept
        any more."""
        self._forgotten_before_loading: list[tuple[int, int, int, int]] = []
        self._loaded = False
        self.counts = BlockFileCounts()
        self._work = FileWork(self._begin, self._work_failed)

    # --- for fetches ------------------------------------------------------------------------------

    def key(self, topic: Topic, shard: int, start: int, end: int) -> BlockKey:
        """The key of a topic's block."""
        return BlockKey(self.origin.contents_of(topic), shard, start, end)

    def kept_by_partition(self) -> dict[str, dict[int, int]]:
        """Bytes in files: by the contents that a key names, then by shard."""
        with self._lock:
            return self._files.bytes_by_partition()

    @property
    def kept_bytes(self) -> int:
        """Bytes in files."""
        return self._files.bytes

    def read(self, key: BlockKey, leader_epoch: int) -> Block | None:
        """The block, or None when it is not there, or not to be believed. Raises Unavailable when
        the store's answer is needed and does not come."""
        with self._lock:
            entry = self._files.get(key)
        if (
            entry is None
            or (kept := self._open(key, entry)) is None
            or kept.leader_epoch > leader_epoch
        ):
            return None
        witness = self.origin.witness(key.shard, entry.known)
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
            if self._files.get(key) is not entry:
                return None  # it was forgotten meanwhile
            self._files.used(key)
            self.counts.read += 1
        self._folder.used(key, entry.known)
        return kept.block

    def keep(self, key: BlockKey, block: Block, known: int, leader_epoch: int) -> None:
        """Has the block written: soon, unless too much waits already. ``known``: a watermark of the
        shard from before the block was read from the store."""
        size = block_bytes(block)
        with self._lock:
            if self._work.is_closing or self._files.get(key) or size > self.bytes_max:
                return
            if self._work.waiting_bytes + size > BLOCK_FILES_WAITING_BYTES_MAX:
                self.counts.passed_over += 1
                return
            self._work.add(lambda: self._write(key, block, known, leader_epoch), size)

    def trim(self, shard: int, log_start: int) -> None:
        """The shard's log starts there: blocks from below are dropped, soon."""
        with self._lock:
            self._work.add(lambda: self._drop_below(shard, log_start))

    def forget(self, shard: int, start: int, end: int, known: int) -> None:
        """Stops reading blocks of any topic with an offset from ``start`` up to, not including,
        ``end``, and removes them soon. Blocks that were encoded when the log was known up to
        ``known`` or more stay. Calls from before the files are listed are applied then, too. The
        same call may be repeated."""
        with self._lock:
            self._forgotten_below[shard] = max(known, self._forgotten_below.get(shard, 0))
            if not self._loaded:
                self._forgotten_before_loading.append((shard, start, end, known))
            for key, entry in self._files.of_shard(shard):
                if key.start < end and start < key.end and entry.known < known:
                    self._work.add(partial(self._take_out(key).unlink, missing_ok=True))

    def close(self) -> None:
        """Writes the waiting blocks and gives the folder back."""
        self._work.close()
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
            if self._files.get(key) is entry:
                self._take_out(key)
        self._folder.remove(key, entry.known)

    def _take_out(self, key: BlockKey) -> Path:
        """Takes a block out of the kept ones; the lock is held. Its file is still to be removed."""
        return self._folder.file(key, self._files.take_out(key).known)

    # --- the thread -------------------------------------------------------------------------------

    def _begin(self, closes_within: Callable[[float], bool]) -> bool:
        if not self._folder.take(closes_within):
            return False
        self._load()
        return True

    def _work_failed(self) -> None:
        self.counts.failed += 1

    def _load(self) -> None:
        """Finds the kept files, and removes half-written ones."""
        found, superseded = self._folder.listed()
        with self._lock:
            for key, entry in found.items():
                self._files.put_in(key, entry)
            self._loaded = True
            forgotten, self._forgotten_before_loading = self._forgotten_before_loading, []
        for each in forgotten:
            self.forget(*each)
        for path in superseded:
            with suppress(OSError):
                path.unlink()
        self._make_room(0)

    def _write(self, key: BlockKey, block: Block, known: int, leader_epoch: int) -> None:
        witness = self.origin.witness(key.shard, known)
        if witness is None:
            return
        data = encode_block_file(key, KeptBlock(block, known, leader_epoch, witness))
        if len(data) > self.bytes_max:
            return
        self._make_room(len(data))
        with self._folder.staged(key, known, data) as put_in_place, self._lock:
            forgotten_below = self._forgotten_below.get(key.shard, 0)
            if self._files.get(key) is None and known >= forgotten_below:
                put_in_place()
                self._files.put_in(key, KeptFile(len(data), known))
                self.counts.written += 1

    def _make_room(self, size: int) -> None:
        """Drops the least recently used until ``size`` bytes more are within the budget."""
        while True:
            with self._lock:
                if not self._files.bytes or self._files.bytes + size <= self.bytes_max:
                    return
                path = self._take_out(self._files.least_used())
                self.counts.evicted += 1
            path.unlink(missing_ok=True)

    def _drop_below(self, shard: int, log_start: int) -> None:
        with self._lock:
            paths = [
                self._take_out(key)
                for key, _ in self._files.of_shard(shard)
                if key.start < log_start
            ]
        for path in paths:
            path.unlink(missing_ok=True)
