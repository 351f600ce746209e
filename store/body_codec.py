"""How a body lies on disk: one codec byte, then the compressed body. Codecs are added, never changed, so old cells stay readable for ever.

====  =============================================  =================================================
byte  content                                        why
====  =============================================  =================================================
1     MessagePack, zlib                              Uber's Schemaless article ("Designing Schemaless", 2016)
2     canonical JSON, zstd level 3 (default)         no transcoding for the feed; a third of the CPU
====  =============================================  =================================================

Decompression is bounded by ``BODY_BYTES_MAX``: damaged or hostile bytes cost one error, never the memory of the process.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from typing import Final

import msgpack
import zstandard

from store import json_body
from store.errors import DataDamaged
from store.limits import BODY_BYTES_MAX

CODEC_MSGPACK_ZLIB: Final = 1
CODEC_JSON_ZSTD: Final = 2
DEFAULT_CODEC: Final = CODEC_JSON_ZSTD

_ZSTD_LEVEL: Final = 3
_TOGETHER_FROM: Final = 8
"""Bodies from which one call for all is cheaper than a call each."""


class _PerThread(threading.local):
    """zstd contexts keep state between calls and must not be shared by threads."""

    def __init__(self) -> None:
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        self.compress = compressor.compress
        self.compress_many = compressor.multi_compress_to_buffer
        self.decompress = zstandard.ZstdDecompressor(max_window_size=1 << 23).decompress


_zstd = _PerThread()


def encode_body(body_json: bytes, codec: int = DEFAULT_CODEC) -> bytes:
    """Canonical JSON to stored bytes. Raises ValueError for a codec that does not exist."""
    if codec == CODEC_JSON_ZSTD:
        return b"\x02" + _zstd.compress(body_json)
    if codec == CODEC_MSGPACK_ZLIB:
        return b"\x01" + zlib.compress(msgpack.packb(json_body.parse(body_json)))
    raise ValueError(f"body codec {codec} does not exist; known are {CODEC_MSGPACK_ZLIB} and {CODEC_JSON_ZSTD}")


def encode_bodies(bodies: Sequence[bytes], codec: int = DEFAULT_CODEC) -> list[bytes]:
    """:func:`encode_body` for many: one call into zstd, so a busy process gives up and takes back the interpreter's lock once, not per body."""
    if codec != CODEC_JSON_ZSTD or len(bodies) < _TOGETHER_FROM:
        return [encode_body(body, codec) for body in bodies]
    frames = _zstd.compress_many(list(bodies))
    return [b"\x02" + frames[index].tobytes() for index in range(len(frames))]


def decode_body(stored: bytes) -> bytes:
    """Stored bytes to canonical JSON. Raises DataDamaged when they are not what :func:`encode_body` wrote."""
    try:
        if stored[0] == CODEC_JSON_ZSTD:
            # The frame names its content size; zstd refuses content of another size, and the check below refuses a lying size first.
            frame = stored[1:]
            if not 0 <= zstandard.frame_content_size(frame) <= BODY_BYTES_MAX:
                raise DataDamaged(f"a stored body claims more than {BODY_BYTES_MAX} bytes, or does not say how many")
            return _zstd.decompress(frame, allow_extra_data=False)
        if stored[0] == CODEC_MSGPACK_ZLIB:
            return json_body.canonical(msgpack.unpackb(_inflate(stored[1:]), strict_map_key=True))
    except DataDamaged:
        raise
    except Exception as error:
        raise DataDamaged(f"a stored body of {len(stored)} bytes does not decode: {type(error).__name__}: {error}") from error
    raise DataDamaged(f"a stored body names codec {stored[0]}, which this version does not know")


def decoded_bytes_bound(stored: bytes) -> int:
    """At most so many bytes will :func:`decode_body` give: what a reader plans its memory by, without decoding."""
    if stored[0] == CODEC_JSON_ZSTD:
        return int(zstandard.frame_content_size(stored[1:19]))
    return BODY_BYTES_MAX


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    # MessagePack of a body can exceed its JSON only by a few bytes per float (9 against "0.0"): three times is beyond any real body.
    limit = 3 * BODY_BYTES_MAX
    content = inflater.decompress(data, limit)
    if inflater.unconsumed_tail or not inflater.eof or inflater.unused_data:
        raise DataDamaged("a stored body is cut short, has bytes behind its end, or inflates beyond its limit")
    return content
