"""When a loader writes waiting rows out, and its progress so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

FLUSH_ROWS: Final = 100_000
"""Rows of a shard that make a data file: some 10 to 30 MB, a size that analytic readers like."""

FLUSH_BYTES: Final = 64 << 20
"""Memory of a shard's waiting rows, bytes, after which they are written out."""

WAITING_BYTES_MAX: Final = 256 << 20
"""Memory of all waiting rows together; past it the shard with the most is written out."""

FLUSH_AGE_S: Final = 5.0
"""How long a row waits for its file at most: how far the table may be behind the log, seconds."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When waiting rows become a file: at so many rows or bytes of a shard, or when the oldest has
    waited so long."""

    rows: int = FLUSH_ROWS
    bytes: int = FLUSH_BYTES
    age_s: float = FLUSH_AGE_S


DEFAULT_FLUSH: Final = FlushPolicy()


@dataclass(slots=True)
class LoaderProgress:
    """The progress of a loader so far. ``stopped`` says per partition why it is not read any
    further."""

    rows: int = 0
    files: int = 0
    lost_races: int = 0
    waiting_rows: int = 0
    next_offsets: dict[int, int] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)


OnProgress = Callable[[LoaderProgress], None]
