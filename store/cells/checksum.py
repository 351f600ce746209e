"""A checksum of a whole stored cell: its key, its place, and its body as it is stored.

A body's frame has a checksum of its content, but nothing of that says whose body it is: one flipped
bit made another row, id or time of it. CRC32C finds every damage of up to 32 bits in a row.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

pack_key: Final = Struct(">qqq16s").pack
"""Of added_id, ref key, time and row key: the checksum begins with it. A reader of many cells saves
a call for each by writing the expression out."""


def cell_checksum(
    added_id: int, row_key: bytes, column_name: str, ref_key: int, created_at_us: int, body: bytes
) -> int:
    """The CRC32C, in the order of :class:`cellfeed.store.cells.cell.StoredCell`. Its shard follows
    from the row key. Raises struct.error, TypeError, AttributeError for values that no cell has."""
    return crc32c(pack_key(added_id, ref_key, created_at_us, row_key) + column_name.encode() + body)
