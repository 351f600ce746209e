"""Lines of a file of text, bounded: a line that is too long is passed over, not kept in memory."""

from __future__ import annotations

from typing import BinaryIO, Final

from cellfeed.store.limits import BODY_BYTES_MAX

LINE_BYTES_MAX: Final = 4 * BODY_BYTES_MAX
"""One line, bytes: the largest body with all its characters escaped."""


class TextLines:
    """Lines of UTF-8 text for a reader of CSV.

    A line that cannot be read keeps its place and its quote signs: a value in quotes may have begun
    before it, and may end behind it. Without them the reader would take the rest of that value for
    records. ``trouble``: why a line of the record cannot be read. ``read_bytes``: how far it is;
    asking the file costs a system call."""

    def __init__(self, raw: BinaryIO) -> None:
        self.read_bytes = 0
        self.trouble = ""
        self._raw = raw
        self._record_bytes = 0
        self._encoding = "utf-8-sig"  # spreadsheets write a byte order mark before the first name

    def begin_record(self) -> None:
        """The next line begins a record."""
        self.trouble = ""
        self._record_bytes = 0

    def __iter__(self) -> TextLines:
        return self

    def __next__(self) -> str:
        line = self._raw.readline(LINE_BYTES_MAX)
        if not line:
            raise StopIteration
        self.read_bytes += len(line)
        self._record_bytes += len(line)
        encoding, self._encoding = self._encoding, "utf-8"
        if cut_short(line) or self._record_bytes > LINE_BYTES_MAX:
            self.trouble = f"longer than {LINE_BYTES_MAX} bytes"
            return '"' * ((line.count(b'"') + self._skip_line(line)) % 2)
        try:
            return line.decode(encoding)
        except UnicodeDecodeError as error:
            self.trouble = self.trouble or str(error)
            return line.decode(encoding, "replace")

    def _skip_line(self, begun: bytes) -> int:
        """Passes over the rest of a line; its quote signs."""
        quotes, piece = 0, begun
        while cut_short(piece) and (piece := self._raw.readline(LINE_BYTES_MAX)):
            self.read_bytes += len(piece)
            quotes += piece.count(b'"')
        return quotes


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
