"""The audit log of a process: JSON lines with principal, act, object and result.

Every request is a line of its own, but for puts and for requests without credentials that count:
these are counted by principal, and a line every ``COUNTED_EVERY_S`` has the numbers. A line is
written as a whole, behind the others, so several processes may share a file. The file is opened
again when it was moved away, and after :meth:`AuditLog.reopen_soon`.

**A full disk.** A line that cannot be written is counted, and the next one that can says how many
are missing; puts and reads go their way, for an audit must not stop a business. An act that
destroys or gives rights (an erasure, users, tokens, ACLs) is written before it is done, and refused
when it cannot be written.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.repeated_warnings import RepeatedWarning

COUNTED_EVERY_S: Final = 60.0
_LOOK_EVERY_S: Final = 1.0
_OBJECT_CHARACTERS_MAX: Final = 300
_encode: Final = msgspec.json.Encoder().encode


class AuditLine(msgspec.Struct, omit_defaults=True):
    """``at``: RFC 3339. ``who``: the principal, ``-`` for nobody. ``how``: its credentials.
    ``did``: the act; ``to``: its object. ``request``: the id of the request. ``result``: an HTTP
    status or a word. ``count`` and ``cells``: of puts. ``missing``: lines before this one that
    could not be written."""

    at: str
    process: str
    who: str
    did: str
    to: str = ""
    how: str = ""
    request: str = ""
    result: str = ""
    address: str = ""
    count: int = 0
    cells: int = 0
    missing: int = 0


class AuditLog:
    """See the module. Any number of threads may use it. ``process`` names the writer. Raises
    OSError when the file cannot be made."""

    def __init__(
        self, path: Path, process: str, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._process = process
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._warning = RepeatedWarning(logging.getLogger("cellfeed.audit"))
        self._file = self._opened()
        self._looked_at_s = self._counted_at_s = clock_s()
        self._counts: dict[tuple[str, str, str], list[int]] = {}
        self._missing = 0
        self._is_moved = False
        self._is_torn = False
        """Whether a part of a line is at the end of the file."""

    def record(
        self,
        who: str,
        did: str,
        to: str = "",
        *,
        how: str = "",
        request: str = "",
        result: str = "",
        address: str = "",
    ) -> None:
        """Writes a line, or counts it as missing. Raises nothing."""
        line = AuditLine(_now(), self._process, who, did, _short(to), how, request, result, address)
        self._append(line)

    def before(
        self,
        who: str,
        did: str,
        to: str = "",
        *,
        how: str = "",
        request: str = "",
        address: str = "",
    ) -> None:
        """Writes the line of an act that is about to be done. Raises StorageUnavailable when it
        cannot be written: the act must not be done."""
        line = AuditLine(
            _now(), self._process, who, did, _short(to), how, request, "begun", address
        )
        if (error := self._append(line)) is not None:
            raise StorageUnavailable(
                f"the audit log cannot be written ({error.strerror}), so nothing was done"
            )

    def count(self, who: str, did: str, result: str, cells: int = 0) -> None:
        """Counts an act that is frequent, or that anybody can do."""
        with self._lock:
            counts = self._counts.setdefault((who, did, result), [0, 0])
            counts[0] += 1
            counts[1] += cells
        if self._clock_s() - self._counted_at_s >= COUNTED_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Writes the counted acts."""
        with self._lock:
            counted, self._counts = self._counts, {}
            self._counted_at_s = self._clock_s()
        for (who, did, result), (count, cells) in counted.items():
            self._append(
                AuditLine(_now(), self._process, who, did, result=result, count=count, cells=cells)
            )

    def reopen_soon(self) -> None:
        """Has the next line open the file again. May be called by a handler of a signal."""
        self._looked_at_s = float("-inf")
        self._is_moved = True

    def close(self) -> None:
        """Writes the counted acts, and ends."""
        self.flush()
        with self._lock:
            os.close(self._file)
            self._file = -1

    def _append(self, line: AuditLine) -> OSError | None:
        with self._lock:
            line.missing = self._missing
            content = (b"\n" if self._is_torn else b"") + _encode(line) + b"\n"
            try:
                self._follow_moves()
                if (written := os.write(self._file, content)) != len(content):
                    self._is_torn = self._is_torn or written > 0
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._missing += 1
                self._warning.warn("a line of the audit log cannot be written: %s", error)
                return error
            self._missing, self._is_torn = 0, False
        return None

    def _follow_moves(self) -> None:
        now_s = self._clock_s()
        if self._is_moved:
            self._is_moved = False
            self._reopen()
        if now_s - self._looked_at_s < _LOOK_EVERY_S:
            return
        self._looked_at_s = now_s
        mine = os.fstat(self._file)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            self._reopen()
            return
        if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
            self._reopen()

    def _reopen(self) -> None:
        file = self._opened()
        os.close(self._file)
        self._file = file

    def _opened(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _short(to: str) -> str:
    return to[:_OBJECT_CHARACTERS_MAX]


def _now() -> str:
    now_s = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1000):03d}Z"
