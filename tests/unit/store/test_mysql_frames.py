"""Cells that a server sends joined in one value: a cut value is not taken for the whole one."""

from __future__ import annotations

import struct

import pytest

from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.checksum import cell_checksum
from cellfeed.store.engines.mysql.frames import of_joined
from cellfeed.store.errors import DataDamaged


def cell(added_id: int) -> StoredCell:
    return StoredCell(added_id, bytes(16), "BASE", 1, 5, encode_body(b'{"n":1}'))


def framed(each: StoredCell) -> bytes:
    lengths = len(each.body) << 41 | len(each.column_name) << 32 | cell_checksum(*each)
    head = struct.pack(
        ">Qqqq16s", lengths, each.added_id, each.ref_key, each.created_at_us, each.row_key
    )
    return head + each.column_name.encode() + each.body


FRAMES = framed(cell(8)) + framed(cell(7))


def test_joined_cells_are_in_the_order_of_their_ids() -> None:
    assert of_joined(0, 2, FRAMES) == [cell(7), cell(8)]


@pytest.mark.parametrize("left_bytes", [0, 3, len(FRAMES) // 2, len(FRAMES) - 1])
def test_a_value_that_the_server_has_cut_is_no_answer(left_bytes: int) -> None:
    """A reader would take the end of the value for the end of the log."""
    assert of_joined(0, 2, FRAMES[:left_bytes]) is None


def test_a_changed_byte_is_damage() -> None:
    with pytest.raises(DataDamaged, match="added_id 7 of shard 0"):
        of_joined(0, 2, FRAMES[:-1] + b"x")
