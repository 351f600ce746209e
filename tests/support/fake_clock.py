"""Processes whose wall clock is another one; their monotonic clock is the machine's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).with_name("wrong_clock")


class FakeClock:
    """One clock, which may be set while processes use it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: float) -> None:
        """So far ahead of the machine's clock, or behind it; from now on."""
        next_file = self._file.with_suffix(".next")
        next_file.write_text(f"{ahead_s:.0f}")
        next_file.replace(self._file)

    def environment(self) -> dict[str, str]:
        """Of a Python process that is to go by it."""
        others = os.environ.get("PYTHONPATH")
        return {
            "PYTHONPATH": f"{_FOLDER}:{others}" if others else str(_FOLDER),
            "CELLFEED_TEST_CLOCK": str(self._file),
        }
