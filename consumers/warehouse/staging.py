"""Files on their way into the table, each locked (``flock(2)``) by the process that writes it.

The lock distinguishes a dead loader's file from a living one's: the kernel lets it go when its
holder dies, however it dies. An owner holds it from before the first byte until its file is in
place or given up. So the process that gets the lock of a staged file knows that its fate is
decided. Where a commit names it, it is moved into place. Otherwise no commit ever will, and it is
removed.

A hard link (``link(2)``) decides between two loaders: exactly one of any number of processes makes
it, and it shows the whole content at once. So a table needs a file system with hard links and
``flock(2)``: any local one of Linux, not an object store.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from cellfeed.consumers.warehouse.layout import STAGED_SUFFIX, STAGING
from cellfeed.store.backups.synced import sync_folder
from cellfeed.store.failpoints import declare, failpoint

declare("warehouse.staging.written", "warehouse.staging.durable")

_HASH_CHUNK_BYTES = 1 << 20
_RECORD_SUFFIX = ".record.staged"


class StagedFile:
    """A new staged file, open and locked; leaving the ``with`` block lets go of the lock and leaves
    the file as it is."""

    def __init__(self, staging: Path, prefix: str, suffix: str = STAGED_SUFFIX) -> None:
        self.path, self.file = _create_locked(staging, prefix, suffix)

    def finish(self) -> None:
        """Puts content and name on disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Removes the name; a link elsewhere stays."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.file.close()


def stage_data_file(directory: Path, shard: int) -> StagedFile:
    """An empty data file of ``shard``, to be written, finished and committed."""
    return StagedFile(directory / STAGING, f"{shard:04d}")


def finish_data_file(staged: StagedFile) -> tuple[int, str]:
    """Puts a written data file on disk; returns its size in bytes and the SHA-256 of its
    content."""
    failpoint("warehouse.staging.written")
    staged.finish()
    failpoint("warehouse.staging.durable")
    return staged.path.stat().st_size, sha256_of(staged.path)


def put_if_absent(path: Path, content: bytes, staging: Path, prefix: str) -> bool:
    """Makes the file ``path`` with ``content``, all at once, unless it exists; returns whether it
    was this call that made it."""
    with StagedFile(staging, prefix, _RECORD_SUFFIX) as record:
        record.file.write(content)
        record.finish()
        made = link_if_absent(record.path, path)
        record.discard()
    return made


def sha256_of(path: Path) -> str:
    """64 hexadecimal digits over a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def try_lock_abandoned(path: Path) -> BinaryIO | None:
    """The open file, locked, if its owner is gone; None if the owner lives or the file is gone.
    Close it to let go."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_still(path, file):
            return file
    except BlockingIOError:
        pass  # its owner is alive
    file.close()
    return None


def _create_locked(staging: Path, prefix: str, suffix: str) -> tuple[Path, BinaryIO]:
    while True:
        path = staging / f"{prefix}-{uuid.uuid4().hex}{suffix}"
        file = path.open("x+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        # Between open and lock a cleaner may have taken the empty file for an orphan and removed
        # it: then the name is no longer this file.
        if _is_still(path, file):
            return path, file
        file.close()


def _is_still(path: Path, file: BinaryIO) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def link_if_absent(source: Path, target: Path) -> bool:
    """Gives the file at ``source`` the second name ``target``, unless that exists; returns whether
    it was this call that did.

    The caller still has to put the name on disk (``sync_folder`` of ``target.parent``).
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True
