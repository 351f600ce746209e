"""Torn writes: a power cut in the middle of a write leaves some of its sectors or pages on disk.

Each unit is on disk as it was written, or not at all; where it is not, the file has its earlier
bytes there, or zeros. A disk writes sectors whole; a file system writes its pages in any order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from tests.durability.recorded import Truncated, Written

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4_096
UNITS: Final = (SECTOR_BYTES, PAGE_BYTES)
"""The unit that reaches a disk whole, by kind of disk."""


def units_of(write: Written, unit_bytes: int) -> list[Written]:
    """The write, cut where units of the file end."""
    end = write.offset + len(write.content)
    starts = [
        write.offset,
        *range(write.offset // unit_bytes * unit_bytes + unit_bytes, end, unit_bytes),
    ]
    return [
        Written(write.file, start, write.content[start - write.offset : after - write.offset])
        for start, after in zip(starts, [*starts[1:], end], strict=True)
    ]


def tears(write: Written) -> Iterator[list[Written]]:
    """The parts of the write that may be left, for each kind of unit: each prefix, each suffix, and
    all but one unit. Nothing of a write that is one unit: it is whole or lost."""
    for unit_bytes in UNITS:
        units = units_of(write, unit_bytes)
        for place in range(1, len(units)):
            yield units[:place]
            yield units[place:]
        for place in range(1, len(units) - 1):
            yield units[:place] + units[place + 1 :]


def torn_by_chance(
    writes: Sequence[Written | Truncated], chance: random.Random
) -> list[Written | Truncated]:
    """Of writes that were not synced: each is whole, lost, or torn to a prefix, a suffix or any of
    its units."""
    left: list[Written | Truncated] = []
    for write in writes:
        if isinstance(write, Truncated):
            left += [write] if chance.random() < 0.5 else []
            continue
        units = units_of(write, chance.choice(UNITS))
        place = chance.randint(0, len(units))
        left += chance.choice(
            (units, units[:place], units[place:], [each for each in units if chance.random() < 0.5])
        )
    return left
