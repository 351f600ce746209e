"""A kept block is the one that its file's name says."""

from __future__ import annotations

import pytest

from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.block_file import (
    BlockKey,
    KeptBlock,
    decode_block_file,
    encode_block_file,
)
from cellfeed.store.errors import DataDamaged

KEY = BlockKey("0" * 32, 3, 0, 10)
KEPT = KeptBlock([Batch(0, 4, b"one"), Batch(4, 10, b"two")], 12, 1, bytes(32))
FILE = encode_block_file(KEY, KEPT)


def test_a_file_gives_the_block_that_was_written() -> None:
    assert decode_block_file(FILE, KEY, 12) == KEPT


@pytest.mark.parametrize(
    ("key", "known"),
    [
        (KEY, 13),
        (KEY._replace(shard=4), 12),
        (KEY._replace(start=1), 12),
        (KEY._replace(end=11), 12),
        (KEY._replace(contents="1" * 32), 12),
    ],
)
def test_a_file_under_another_name_is_damage(key: BlockKey, known: int) -> None:
    """By the watermark in its name a block is forgotten, or kept, after an erasure."""
    with pytest.raises(DataDamaged, match="which is not its name"):
        decode_block_file(FILE, key, known)
