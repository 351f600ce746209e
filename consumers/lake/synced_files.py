"""Local files that are on disk before a commit names them, and pyiceberg's own files likewise."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlparse

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from cellfeed.store.backups.synced import make_folders, sync_folder


def local_path(location: str) -> Path:
    """The path of a ``file:`` location, or of one without a scheme."""
    parts = urlparse(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(location)


@contextmanager
def synced_file(path: Path) -> Iterator[BinaryIO]:
    """A new file; it and its name are on disk at the end of the block. Raises FileExistsError."""
    make_folders(path.parent)
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


class _SyncedStream(io.FileIO):
    """Closing it puts the file and its name on disk."""

    def __init__(self, path: Path, mode: str) -> None:
        make_folders(path.parent)
        self._path = path
        super().__init__(path, mode)

    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            sync_folder(self._path.parent)


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        return _SyncedStream(local_path(self.location), "wb" if overwrite else "xb")


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's files (metadata, manifests): on disk when they are closed. Otherwise a power cut
    could leave a catalog that names an empty file. Named by ``py-io-impl``."""

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        if urlparse(location).scheme not in ("", "file"):
            return file
        return _SyncedFile(file.location, file._path, file._filesystem, file._buffer_size)  # noqa: SLF001
