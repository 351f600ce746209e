"""Which files of a table have which row keys: 8 bytes for each row, kept in memory."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cellfeed.consumers.lake.typed.conforming import conform
from cellfeed.consumers.lake.typed.uuid_arrays import BYTES

KEPT_BYTES_MAX: Final = 96 << 20
"""Memory of all kept hashes, bytes: twelve million rows. Beyond them files are read again."""

Hashes = NDArray[np.uint64]


class RowHashes:
    """Files never change, so their hashes are read once."""

    def __init__(self) -> None:
        self._of: dict[str, Hashes] = {}
        self._bytes = 0

    def keep(self, paths: set[str]) -> None:
        """Forgets all other files."""
        for path in self._of.keys() - paths:
            self._bytes -= self._of.pop(path).nbytes

    def may_have(self, path: str, sorted_keys: Hashes) -> bool:
        """Whether a file may have a row with one of the keys."""
        own = self._of.get(path)
        if own is None:
            table = pq.read_table(path, columns=["row_key"], partitioning=None)
            own = np.sort(key_hashes(conform(table["row_key"], BYTES)))
            if self._bytes + own.nbytes <= KEPT_BYTES_MAX:
                self._of[path] = own
                self._bytes += own.nbytes
        few, many = (own, sorted_keys) if len(own) < len(sorted_keys) else (sorted_keys, own)
        if not len(few):
            return False
        places = np.minimum(np.searchsorted(many, few), len(many) - 1)
        return bool(np.any(many[places] == few))


def key_hashes(keys: pa.Array) -> Hashes:
    """Of row keys of 16 bytes each, without nulls."""
    high, low = key_halves(keys)
    mixed: Hashes = high ^ (low << np.uint64(1)) ^ (low >> np.uint64(63))
    return mixed


def key_halves(keys: pa.Array) -> tuple[Hashes, Hashes]:
    """Both halves of 16 bytes as numbers, which sort as the bytes do."""
    raw = np.frombuffer(keys.buffers()[1] or b"", np.uint8)[keys.offset * 16 :][: len(keys) * 16]
    numbers = raw.view(">u8").astype(np.uint64).reshape(len(keys), 2)
    return numbers[:, 0], numbers[:, 1]
