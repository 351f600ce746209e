"""The batches and blocks of the log."""

from __future__ import annotations

from typing import NamedTuple


class Batch(NamedTuple):
    """An encoded record batch for the offsets from ``start`` up to, not including, ``end``."""

    start: int
    end: int
    data: bytes


Block = list[Batch]


def block_bytes(block: Block) -> int:
    """Bytes of its batches."""
    return sum(len(batch.data) for batch in block)
