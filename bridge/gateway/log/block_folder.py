"""The folder of the files that one gateway keeps blocks in: its lock, the names of its files, and
those that are there.

Each gateway has a folder of its own (``DIRECTORY/DATASTORE-NAME``), with a lock. Two gateways that
are configured with one directory do not meet. Of two processes with one name the second works
without files until the first has ended. The process dies, or the power fails:

    while a file is written                 a file ``….tmp`` is left, removed at the next start
    between writing and renaming,           nothing is left, or a file that lacks some
    or right after it                       bytes on the disk; it is dropped when it is read,
                                            by its CRC
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from cellfeed.bridge.gateway.log.block_file import (
    BlockKey,
    file_name,
    parse_file_name,
)
from cellfeed.store.errors import InvalidRequest

_log = logging.getLogger("cellfeed.gateway")
_LOCK_LOOK_S: Final = 1.0


class KeptFile(NamedTuple):
    """A file: its size in bytes, and the watermark that was known when its block was encoded."""

    size: int
    known: int


class BlockFolder:
    """One gateway's. A second process of its name waits for the lock."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidRequest when the directory cannot be used."""
        self.path = path
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(
                self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise InvalidRequest(
                f"kept blocks: {self.path}: {error.strerror}; give a directory that can be"
                " written, or disk_bytes: 0"
            ) from error

    def close(self) -> None:
        """Gives the lock back."""
        os.close(self._lock_file)

    def take(self, wait_for_end: Callable[[float], bool]) -> bool:
        """Waits for the lock. ``wait_for_end`` waits so many seconds, and returns whether the end
        has come: then False is returned."""
        is_logged = False
        while True:
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not is_logged:
                    is_logged = True
                    _log.warning(
                        "%s is held by another process: this gateway keeps blocks in memory alone"
                        " until that one has ended",
                        self.path,
                    )
                if wait_for_end(_LOCK_LOOK_S):
                    return False
            else:
                return True

    def file(self, key: BlockKey, known: int) -> Path:
        """The path of a block's file."""
        return self.path / key.contents / str(key.shard) / file_name(key, known)

    @contextmanager
    def staged(self, key: BlockKey, known: int, data: bytes) -> Iterator[Callable[[], object]]:
        """Writes a block's file beside its place; calling the result puts it there, and the end
        removes it otherwise. Raises OSError."""
        path = self.file(key, known)
        temporary = path.with_suffix(".tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            yield lambda: temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def used(self, key: BlockKey, known: int) -> None:
        """Notes the use of a file: the order of use outlives the process."""
        with suppress(OSError):
            os.utime(self.file(key, known))

    def remove(self, key: BlockKey, known: int) -> None:
        """Removes a block's file, where that can be done."""
        with suppress(OSError):
            self.file(key, known).unlink(missing_ok=True)

    def listed(self) -> tuple[dict[BlockKey, KeptFile], list[Path]]:
        """The files that are there, in the order of their last use, and those to be removed: ones
        that were being written, and ones that a newer one replaces."""
        found: dict[BlockKey, tuple[float, KeptFile]] = {}
        superseded: list[Path] = []
        for path in self._files():
            if path.suffix == ".tmp":
                superseded.append(path)
                continue
            parsed = parse_file_name(path.parent.parent.name, int(path.parent.name), path.name)
            if parsed is None:
                continue
            key, known = parsed
            with suppress(OSError):
                status = path.stat()
                before = found.get(key)
                if before is None or before[1].known < known:
                    found[key] = (status.st_mtime, KeptFile(status.st_size, known))
                superseded += (
                    [self.file(key, before[1].known)]
                    if before and before[1].known < known
                    else [path]
                    if before
                    else []
                )
        ordered = sorted(found.items(), key=lambda item: item[1][0])
        return {key: kept for key, (_, kept) in ordered}, superseded

    def _files(self) -> Iterator[Path]:
        with suppress(OSError):
            for contents in self.path.iterdir():
                if len(contents.name) == 32 and contents.is_dir():
                    for shard in contents.iterdir():
                        if shard.name.isdecimal() and shard.is_dir():
                            yield from shard.iterdir()
