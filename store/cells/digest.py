"""One digest per shard over everything that a cell is, in log order: the same figure in store,
gateway, Kafka and warehouse (I17).

SHA-256 over these fields of each cell:

- added_id (8 bytes, big-endian);
- row key (16);
- length of the column name (2) and the name in UTF-8;
- ref key (8, signed);
- length of the body (4) and the canonical JSON of the body.

Lengths make every cell's bytes readable in one way only.
"""

from __future__ import annotations

import hashlib
import struct

_HEAD = struct.Struct(">Q16sH")
_TAIL = struct.Struct(">qI")


class ShardDigest:
    """The digest of a shard's cells, fed in ascending added_id."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.cells = 0
        self.next_added_id = 0
        """The id after the last one fed: two digests are comparable only up to the same id."""

    def add(
        self, added_id: int, row_key: bytes, column_name: str, ref_key: int, body_json: bytes
    ) -> None:
        """Feeds one cell. Raises ValueError when ``added_id`` does not come after the one before:
        order is part of the digest."""
        if added_id < self.next_added_id:
            raise ValueError(
                f"added_id {added_id} came after {self.next_added_id - 1}: the log is read in"
                " ascending order"
            )
        name = column_name.encode()
        self._hash.update(
            _HEAD.pack(added_id, row_key, len(name))
            + name
            + _TAIL.pack(ref_key, len(body_json))
            + body_json
        )
        self.cells += 1
        self.next_added_id = added_id + 1

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.hexdigest()
