"""Files of a backup that hold many small things: blocks, each with its own checksum, so the place
of damage is known.

    magic                         16 bytes, names the format and its version.
    block, any number of times    payload bytes (4), CRC-32 of the payload (4), the payload.

Numbers are big-endian. A block that is cut short, or that says another checksum than it has, is
DataDamaged with the file and the offset. The manifest proves that a file ends where it should: its
length and its SHA-256.

In a file of cells a payload is: shard (4), number of cells (4), and the cells. A cell begins with a
head: added_id (8), row key (16), ref key (8, signed), created_at in microseconds (8), length of the
column name (2), length of the body (4). The name follows, then the body **as it is stored**
(:mod:`cellfeed.store.cells.body_codec`). Bodies are neither decoded nor compressed again: a reader
gets the stored bytes, unchanged.

In a file of an encrypted backup a payload is an age message, and its content is blocks: so damage
of the file is found without a key, and many small entries share one message. No message holds cells
of two pieces of a log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import BinaryIO, Final
from zlib import crc32

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import DataDamaged

MAGIC: Final = b"cellfeed backup1"
ENCRYPTED_MAGIC: Final = b"cellfeed backup2"
BLOCK_BYTES: Final = 1 << 20
"""Payload after which a block ends: large enough that its head costs nothing, small enough to be
held in memory many times over."""

BLOCK_BYTES_MAX: Final = 64 << 20
"""No block is larger: a length beyond it is damage. One cell of the largest body, or one state
entry, has a few MiB."""

_HEAD: Final = struct.Struct(">II")
_CELLS: Final = struct.Struct(">II")
_CELL: Final = struct.Struct(">Q16sqQHI")


def block_of(payload: bytes) -> bytes:
    """A block, ready to be written."""
    return _HEAD.pack(len(payload), crc32(payload)) + payload


def read_blocks(file: BinaryIO, name: str, offset: int, size: int) -> Iterator[bytes]:
    """The payloads of the blocks that lie in ``size`` bytes from ``offset`` on. Raises
    DataDamaged."""
    file.seek(offset)
    end = offset + size
    while offset < end:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise DataDamaged(
                f"{name}: the file ends at {offset + len(head)}, inside a block's head"
            )
        length, checksum = _HEAD.unpack(head)
        if length > BLOCK_BYTES_MAX or offset + _HEAD.size + length > end:
            raise DataDamaged(
                f"{name}: the block at {offset} says that it has {length} bytes, which it cannot"
                " have"
            )
        payload = file.read(length)
        if len(payload) < length or crc32(payload) != checksum:
            raise DataDamaged(
                f"{name}: the block at {offset} is damaged: its {length} bytes do not have the"
                " checksum that they were written with"
            )
        offset += _HEAD.size + length
        yield payload


def read_encrypted_blocks(
    file: BinaryIO, name: str, offset: int, size: int, decrypt: Callable[[bytes, str], bytes]
) -> Iterator[bytes]:
    """The payloads of the blocks inside of the encrypted ones. ``decrypt``: a message and its name
    for errors. Raises DataDamaged."""
    for number, message in enumerate(read_blocks(file, name, offset, size)):
        what = f"{name}: encrypted block {number} from {offset} on"
        content = decrypt(message, what)
        yield from read_blocks(BytesIO(content), what, 0, len(content))


def cells_payload(shard: int, cells: Sequence[StoredCell]) -> bytes:
    """Cells of one shard as a payload."""
    parts = [_CELLS.pack(shard, len(cells))]
    for cell in cells:
        name = cell.column_name.encode()
        parts += (
            _CELL.pack(
                cell.added_id,
                cell.row_key,
                cell.ref_key,
                cell.created_at_us,
                len(name),
                len(cell.body),
            ),
            name,
            cell.body,
        )
    return b"".join(parts)


def cells_of(payload: bytes, name: str) -> tuple[int, list[StoredCell]]:
    """The shard and the cells of a payload. Raises DataDamaged for one that :func:`cells_payload`
    did not make."""
    try:
        shard, count = _CELLS.unpack_from(payload)
        cells = []
        position = _CELLS.size
        for _ in range(count):
            added_id, row_key, ref_key, created_at_us, name_bytes, body_bytes = _CELL.unpack_from(
                payload, position
            )
            name_at = position + _CELL.size
            body_at = name_at + name_bytes
            position = body_at + body_bytes
            cells.append(
                StoredCell(
                    added_id,
                    row_key,
                    payload[name_at:body_at].decode(),
                    ref_key,
                    created_at_us,
                    payload[body_at:position],
                )
            )
    except (struct.error, UnicodeDecodeError) as error:
        raise DataDamaged(f"{name}: a block holds no cells: {error}") from error
    if position != len(payload):
        raise DataDamaged(
            f"{name}: a block of {len(payload)} bytes holds cells up to byte {position}"
        )
    return shard, cells
