"""Compression of record batches, by Kafka's names: the records behind a batch's head become one
compressed text, and its attributes name the codec.

The form of each codec's text that every client reads:

- gzip: RFC 1952.
- snappy: snappy-java's stream, as Kafka's own producer writes it (magic, two versions, then blocks
  with their lengths), which every client knows; some of them know the bare form as well.
- lz4: the LZ4 frame format with independent blocks of 64 KiB, the only ones that the Java client
  reads. The frame is written here around the blocks.
- zstd: one frame. Clients know it from version 10 of Fetch on; an older Fetch is refused with that
  reason (:data:`Compression.fetch_version_min`).

Every function is one of its bytes alone and safe to use from several threads; all of them let other
threads run meanwhile.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Literal, NamedTuple

import zstandard

CompressionName = Literal["none", "gzip", "snappy", "lz4", "zstd"]

_GZIP_LEVEL: Final = 6
_GZIP_WINDOW: Final = 31
"""zlib's largest window, and 16 for gzip's head and end instead of zlib's."""
_ARROW_NAMES: Final[Mapping[str, str]] = {"snappy": "snappy", "lz4": "lz4_raw"}
"""Codecs that Arrow has, by its names."""

_ZSTD_LEVEL: Final = 3
"""Levels as Kafka's producer takes them."""

_SNAPPY_HEAD: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK_BYTES: Final = 32 << 10
"""snappy-java's own block size."""

_LZ4_HEAD: Final = bytes.fromhex("04224d18 60 40 82")
"""Magic, version 1 with independent blocks and no checksums, blocks of 64 KiB, the checksum of
those two bytes."""
_LZ4_BLOCK_BYTES: Final = 64 << 10
_LZ4_AS_IT_IS: Final = 1 << 31
"""In a block's length: its bytes are not compressed."""
_LZ4_END: Final = bytes(4)


class Compression(NamedTuple):
    """A codec of record batches. ``attribute``: its bits in a batch's attributes;
    ``fetch_version_min``: the first version of Fetch whose clients know it."""

    name: CompressionName
    attribute: int
    compress: Callable[[bytes], bytes]
    fetch_version_min: int = 0


def _gzip(records: bytes) -> bytes:
    return zlib.compress(records, _GZIP_LEVEL, _GZIP_WINDOW)


def _snappy(records: bytes) -> bytes:
    compress, parts = _arrow_codec(_ARROW_NAMES["snappy"]), [_SNAPPY_HEAD]
    for start in range(0, len(records), _SNAPPY_BLOCK_BYTES):
        block = compress(records[start : start + _SNAPPY_BLOCK_BYTES], asbytes=True)
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _lz4(records: bytes) -> bytes:
    compress, parts = _arrow_codec(_ARROW_NAMES["lz4"]), [_LZ4_HEAD]
    for start in range(0, len(records), _LZ4_BLOCK_BYTES):
        plain = records[start : start + _LZ4_BLOCK_BYTES]
        block = compress(plain, asbytes=True)
        if len(block) < len(plain):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(plain) | _LZ4_AS_IT_IS), plain)
    return b"".join((*parts, _LZ4_END))


def _zstd(records: bytes) -> bytes:
    return zstandard.compress(records, _ZSTD_LEVEL)


@cache
def _arrow_codec(name: str) -> Callable[..., Any]:
    # A gateway that compresses nothing with it does without the 40 MiB that Arrow takes.
    import pyarrow

    compress: Callable[..., Any] = pyarrow.Codec(name).compress
    return compress


_COMPRESSIONS: Final[Mapping[str, Compression]] = {
    each.name: each
    for each in (
        Compression("gzip", 1, _gzip),
        Compression("snappy", 2, _snappy),
        Compression("lz4", 3, _lz4),
        Compression("zstd", 4, _zstd, 10),
    )
}


def compression_named(name: CompressionName) -> Compression | None:
    """The codec that configuration calls ``name``; None for ``none``. Raises ModuleNotFoundError
    where its package is not installed: a gateway reports that at its start."""
    if name in _ARROW_NAMES:
        _arrow_codec(_ARROW_NAMES[name])
    return None if name == "none" else _COMPRESSIONS[name]
