"""Blocks of a backup's files: damage of any kind is named with the place, and none is passed."""

from __future__ import annotations

from io import BytesIO

import pytest

from cellfeed.store.backups.block_file import block_of, cells_of, cells_payload, read_blocks
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import DataDamaged

BLOCKS = [b"first", b"", b"third" * 10]
FILE = b"magic" + b"".join(map(block_of, BLOCKS))
CELLS = [
    StoredCell(7, b"k" * 16, "BASE", -3, 1_000_000, b"\x01{}"),
    StoredCell(9, b"l" * 16, "STATUS", 5, 2_000_000, b""),
]


def read(content: bytes, offset: int = 5, size: int | None = None) -> list[bytes]:
    size = len(content) - offset if size is None else size
    return list(read_blocks(BytesIO(content), "cells-1", offset, size))


def test_blocks_are_read_as_they_were_written() -> None:
    assert read(FILE) == BLOCKS
    assert read(FILE + block_of(b"of the next part"), size=len(FILE) - 5) == BLOCKS


@pytest.mark.parametrize("end", range(6, len(FILE)))
def test_a_part_that_ends_too_early_is_damage_wherever_it_ends(end: int) -> None:
    whole = {5 + sum(len(block_of(each)) for each in BLOCKS[:count]) for count in range(4)}
    if end in whole:
        with pytest.raises(DataDamaged, match=f"the file ends at {end}"):
            read(FILE[:end], size=len(FILE) - 5)
        return
    with pytest.raises(DataDamaged, match="cells-1: the"):
        read(FILE[:end])
    with pytest.raises(DataDamaged, match="cells-1: the"):
        read(FILE, size=end - 5)  # the rest belongs to another part


@pytest.mark.parametrize("at", range(5, len(FILE)))
def test_a_flipped_bit_anywhere_is_damage(at: int) -> None:
    damaged = bytearray(FILE)
    damaged[at] ^= 1
    with pytest.raises(DataDamaged):
        read(bytes(damaged))


def test_the_cells_of_a_payload_fill_it() -> None:
    payload = cells_payload(3, CELLS)
    assert cells_of(payload, "cells-1") == (3, CELLS)
    for wrong in (payload + b"\0", payload[:-1], payload[:20], b""):
        with pytest.raises(DataDamaged, match="cells-1: a block"):
            cells_of(wrong, "cells-1")
