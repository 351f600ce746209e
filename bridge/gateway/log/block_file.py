"""One kept block as a file: its name, its bytes, and the block's origin as both state it. Values
only; the files are those of :mod:`cellfeed.bridge.gateway.log.block_files`.

    CONTENTS/SHARD/START-END-KNOWN.block

CONTENTS is a fingerprint of everything that decides how cells of a shard become bytes: datastore,
history, shards; the topic's view, format and compression; the version of this file's form; a sample
batch. This very program makes the sample of a cell that never changes, so a program that encodes
otherwise finds other names. KNOWN is the shard's watermark when the block was encoded. In the file,
big-endian: magic, fingerprint, shard, start, end, KNOWN, leader epoch, witness, the count of
batches, of each its end and its length; then the batches; last a CRC-32C of all before. A file
counts only if all of it fits, the name too. So a file that was torn by a power cut, shortened,
overwritten or renamed is detected, whichever bit differs.

**The witness** proves a kept block after a restart, also where the store was changed meanwhile. It
is a hash of the cell ``KNOWN - 1``, the last one that the log showed then: its row key, column, ref
key and moment. See ``block_files.py``.
"""

from __future__ import annotations

import re
import struct
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from cellfeed.bridge.events.record_batch import encode_record_batch
from cellfeed.bridge.gateway.log.batch import Batch, Block
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import DataDamaged

FORM_VERSION: Final = 1
"""Of the files' form: another one is part of other names."""

_MAGIC: Final = b"cellblk\x01"
_HEAD: Final = struct.Struct(">8s16sIQQQq32sI")
_BATCH: Final = struct.Struct(">QI")
_CRC: Final = struct.Struct(">I")
_NAME: Final = re.compile(r"(\d{1,20})-(\d{1,20})-(\d{1,20})\.block")
_PROBE: Final = StoredCell(
    7,
    bytes(range(16)),
    "PROBE",
    3,
    1_700_000_000_123_456,
    encode_body(b'{"text":"a probe of what is encoded","n":[1,2.5,null]}'),
)


class BlockKey(NamedTuple):
    """Which block: the contents' fingerprint (hexadecimal), the shard, the offsets from ``start``
    up to, not including, ``end``."""

    contents: str
    shard: int
    start: int
    end: int


class KeptBlock(NamedTuple):
    """A block with the state at its encoding: the shard's watermark, its leader epoch and the
    witness (see the module)."""

    block: Block
    known: int
    leader_epoch: int
    witness: bytes


def contents_fingerprint(engine: Engine, topic: Topic) -> str:
    """Of all that decides a topic's batches, 32 hexadecimal digits; see the module."""
    probe = encode_record_batch(
        topic.event_format,
        0,
        [_PROBE],
        base_offset=7,
        next_offset=8,
        leader_epoch=0,
        compression=topic.compression,
    )
    parts = [
        FORM_VERSION,
        engine.datastore,
        engine.history.history_id,
        engine.shards,
        topic.content,
        sha256(probe).hexdigest(),
    ]
    return sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def witness_of(cell: StoredCell) -> bytes:
    """A hash of the fields that distinguish the cell from any other that was ever given its id. Its
    body is not in it: erasing a body moves no log."""
    identity = [
        cell.added_id,
        cell.row_key.hex(),
        cell.column_name,
        cell.ref_key,
        cell.created_at_us,
    ]
    return sha256(msgspec.json.encode(identity)).digest()


def file_name(key: BlockKey, known: int) -> str:
    """Below the shard's folder."""
    return f"{key.start}-{key.end}-{known}.block"


def parse_file_name(contents: str, shard: int, name: str) -> tuple[BlockKey, int] | None:
    """Key and KNOWN of a file; None for a file that is none of ours."""
    match = _NAME.fullmatch(name)
    return (
        (BlockKey(contents, shard, int(match[1]), int(match[2])), int(match[3])) if match else None
    )


def encode_block_file(key: BlockKey, kept: KeptBlock) -> bytes:
    """All bytes of the file."""
    head = _HEAD.pack(
        _MAGIC,
        bytes.fromhex(key.contents),
        key.shard,
        key.start,
        key.end,
        kept.known,
        kept.leader_epoch,
        kept.witness,
        len(kept.block),
    )
    parts = [
        head,
        *(_BATCH.pack(batch.end, len(batch.data)) for batch in kept.block),
        *(batch.data for batch in kept.block),
    ]
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return b"".join((*parts, _CRC.pack(crc)))


def decode_block_file(data: bytes, key: BlockKey, known: int) -> KeptBlock:
    """The block of a file with that key and KNOWN in its name. Raises DataDamaged for anything
    else."""
    if (
        len(data) < _HEAD.size + _CRC.size
        or crc32c(memoryview(data)[: -_CRC.size])
        != _CRC.unpack_from(data, len(data) - _CRC.size)[0]
    ):
        raise DataDamaged(f"a kept block of {len(data)} bytes is cut or damaged")
    magic, contents, shard, start, end, watermark, leader_epoch, witness, count = _HEAD.unpack_from(
        data
    )
    if magic != _MAGIC or (contents.hex(), shard, start, end) != key or watermark != known:
        raise DataDamaged(
            f"a kept block says that it is {contents.hex()}/{shard}/{start}-{end}-{watermark},"
            " which is not its name"
        )
    at, batches, batch_start = _HEAD.size + count * _BATCH.size, [], start
    for position in range(_HEAD.size, at, _BATCH.size):
        batch_end, length = _BATCH.unpack_from(data, position)
        batches.append(Batch(batch_start, batch_end, data[at : at + length]))
        at, batch_start = at + length, batch_end
    if at != len(data) - _CRC.size or batch_start != end:
        raise DataDamaged(
            f"a kept block of {len(data)} bytes does not hold its batches up to {end}"
        )
    return KeptBlock(batches, watermark, leader_epoch, witness)
