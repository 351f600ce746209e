"""Which shard a row key belongs to, for ever (I11).

A shard is the partition that Kafka's own default partitioner gives to a record whose key is the row
key as lower-case text: ``(murmur2(utf8(str(row_key))) & 0x7fffffff) % shards`` (Kafka's
``DefaultPartitioner`` / ``Utils.murmur2``). So a topic exported from a datastore is co-partitioned
with every other topic keyed by the same ids. A client in any language finds a row's partition
without asking.

Frozen by the golden vectors in ``tests/unit/store/test_cells.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from cellfeed.store.errors import InvalidRequest, UnknownShard
from cellfeed.store.limits import SHARDS_MAX, SHARDS_STORED_MAX

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_KEY_BYTES: Final = 36
_TEXT_GROUPS: Final = ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4))
"""The digits of a row key's text, from and to, and how many hyphens stand before them."""

_VECTOR_FROM: Final = 16
"""Keys from which the vectorised form wins over the loop."""


def shard_of(row_key: bytes, shards: int) -> int:
    """The shard of a 16-byte row key in a datastore of ``shards`` shards."""
    h = _SEED ^ _KEY_BYTES
    for k in struct.unpack("<9I", row_key_text(row_key)):
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return ((h ^ (h >> 15)) & 0x7FFFFFFF) % shards


def shards_of(row_keys: Sequence[bytes], shards: int) -> list[int]:
    """:func:`shard_of` for many keys at once."""
    if len(row_keys) < _VECTOR_FROM:
        return [shard_of(row_key, shards) for row_key in row_keys]
    try:
        import numpy  # a tenth of a second, for programs alone that put many cells at once
    except ModuleNotFoundError:  # a client is installed without it
        return [shard_of(row_key, shards) for row_key in row_keys]
    digits = numpy.frombuffer(b"".join(row_keys).hex().encode(), dtype=numpy.uint8).reshape(
        len(row_keys), 32
    )
    text = numpy.empty((len(row_keys), _KEY_BYTES), dtype=numpy.uint8)
    text.fill(ord("-"))
    for start, end, hyphens in _TEXT_GROUPS:
        text[:, start + hyphens : end + hyphens] = digits[:, start:end]
    m = numpy.uint32(_M)
    words = text.view("<u4") * m
    words = (words ^ (words >> numpy.uint32(24))) * m
    h = words[:, 0] ^ numpy.uint32((_SEED ^ _KEY_BYTES) * _M & _MASK)
    for column in range(1, 9):
        h = (h * m) ^ words[:, column]
    h = (h ^ (h >> numpy.uint32(13))) * m
    h = (h ^ (h >> numpy.uint32(15))) & numpy.uint32(0x7FFFFFFF)
    result: list[int] = (h % numpy.uint32(shards)).tolist()
    return result


def shard_of_text(text: bytes, shards: int) -> int:
    """The partition of a record with this key, of any length, among ``shards``: of a UUID's 36
    letters that of a row with this key."""
    whole = len(text) & ~3
    h = _SEED ^ len(text)
    for (k,) in struct.iter_unpack("<I", text[:whole]):
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    if rest := text[whole:]:
        h = ((h ^ int.from_bytes(rest, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return ((h ^ (h >> 15)) & 0x7FFFFFFF) % shards


def row_key_text(row_key: bytes) -> bytes:
    """The 36 bytes of lower-case text of a row key: its Kafka record key."""
    h = row_key.hex().encode()
    return b"%b-%b-%b-%b-%b" % (h[:8], h[8:12], h[12:16], h[16:20], h[20:])


def check_shard_count(shards: int) -> int:
    """The number of shards of a datastore, fixed when it is made. Raises InvalidRequest."""
    if type(shards) is not int or not 1 <= shards <= SHARDS_STORED_MAX:
        raise InvalidRequest(f"a datastore has 1 to {SHARDS_MAX} shards, not {shards!r}")
    return shards


def check_new_shard_count(shards: int) -> int:
    """As :func:`check_shard_count`, where a datastore is made."""
    if check_shard_count(shards) > SHARDS_MAX:
        raise InvalidRequest(
            f"a new datastore has 1 to {SHARDS_MAX} shards, not {shards}: each is a Kafka"
            " partition, and widespread clients read no topic of more"
        )
    return shards


def check_shard(shard: object, shards: int) -> int:
    """A shard number from outside. Raises UnknownShard."""
    if type(shard) is not int or not 0 <= shard < shards:
        raise UnknownShard(
            f"shard {shard!r} does not exist; this datastore has shards 0 to {shards - 1}"
        )
    return shard
