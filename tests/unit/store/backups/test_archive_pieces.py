"""Pieces of an archive of binlogs: damage that keeps the length is damage, too."""

from __future__ import annotations

import msgspec
import pytest

from cellfeed.store.backups.binlogs.piece import PieceHead, decode_piece, encode_piece
from cellfeed.store.backups.binlogs.transactions import AddedCell, Transaction
from cellfeed.store.backups.sealed import seal
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import DataDamaged

HEAD = PieceHead(1, "archive", 1, "", "a", "0-1-1", "0-1-3", 9, 0, 0, {}, 0, "")
CELLS = [
    AddedCell(3, 2, StoredCell(added_id, b"k" * 16, "BASE", 1, 0, b"x")) for added_id in (8, 7)
]
CONTENT = encode_piece(HEAD, [Transaction([each]) for each in CELLS], None)


def test_a_piece_records_where_the_cells_of_each_shard_end() -> None:
    piece = decode_piece(CONTENT, "piece 1")
    assert piece.head.ends == {3: 9}
    assert [each.cells for each in piece.transactions(None, "piece 1")] == [[CELLS[0]], [CELLS[1]]]


def test_a_flipped_bit_of_the_transactions_is_damage() -> None:
    damaged = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(DataDamaged, match="piece 1 is damaged"):
        decode_piece(damaged, "piece 1")


@pytest.mark.parametrize("count", [1, 3])
def test_a_piece_with_another_number_of_transactions_is_damage(count: int) -> None:
    piece = decode_piece(CONTENT, "piece 1")
    other = msgspec.structs.replace(piece.head, transactions=count)
    read = decode_piece(seal(other) + piece.content, "piece 1")
    with pytest.raises(DataDamaged, match=f"holds 2 transactions, not {count}"):
        read.transactions(None, "piece 1")
