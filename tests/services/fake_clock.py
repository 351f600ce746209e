"""Processes whose wall clock is another one, by libfaketime; their monotonic clock is the machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LIBRARIES: Final = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
_CACHED_S: Final = 1
"""How soon a process notices that its clock was set."""


def why_not() -> str | None:
    """Why no process can have another clock here; None when it can."""
    return None if _LIBRARIES else "no libfaketime on this machine: `make services` installs it on Debian"


class FakeClock:
    """One clock, which may be set while processes use it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: float) -> None:
        """So far ahead of the machine's clock, or behind it."""
        self._file.write_text(f"{ahead_s:+.0f}")

    def environment(self) -> dict[str, str]:
        """Of a process that is to go by it."""
        return {
            "LD_PRELOAD": str(_LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(_CACHED_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
