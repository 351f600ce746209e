"""Lines of a file of text, bounded: a line that is too long is passed over, not kept in memory."""

from __future__ import annotations

import csv
from typing import BinaryIO, Final

from cellfeed.store.limits import BODY_BYTES_MAX

LINE_BYTES_MAX: Final = 4 * BODY_BYTES_MAX
"""One line, bytes: the largest body with all its characters escaped."""


class TextLines:
    """Lines of UTF-8 text. An iterator and not a generator, because it must continue behind a line
    that it could not read. ``read_bytes``: how far it is; asking the file costs a system call."""

    def __init__(self, raw: BinaryIO) -> None:
        self.read_bytes = 0
        self._raw = raw
        self._encoding = "utf-8-sig"  # spreadsheets write a byte order mark before the first name

    def __iter__(self) -> TextLines:
        return self

    def __next__(self) -> str:
        line = self._raw.readline(LINE_BYTES_MAX)
        if not line:
            raise StopIteration
        self.read_bytes += len(line)
        if cut_short(line):
            self.read_bytes += skip_line(self._raw)
            raise csv.Error(f"line longer than {LINE_BYTES_MAX} bytes")
        encoding, self._encoding = self._encoding, "utf-8"
        return line.decode(encoding)


def cut_short(line: bytes) -> bool:
    """Whether ``readline(LINE_BYTES_MAX)`` ended inside a line."""
    return len(line) == LINE_BYTES_MAX and not line.endswith(b"\n")


def skip_line(raw: BinaryIO) -> int:
    """Passes over the rest of a line; its bytes."""
    skipped = 0
    while rest := raw.readline(LINE_BYTES_MAX):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    return skipped
