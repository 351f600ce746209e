"""Encodes bodies: one, many of a codec, or the cells of a put with the dictionaries of their
columns.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgpack
import zstandard

from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_codec import (
    CODEC_JSON_DICTIONARY,
    CODEC_JSON_ZSTD,
    CODEC_MSGPACK_ZLIB,
    DEFAULT_CODEC,
)
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.known_dictionaries import KnownDictionary

_ZSTD_LEVEL: Final = 3

_TOGETHER_FROM: Final = 8
"""Bodies from which one call for all is cheaper than a call each."""

DICTIONARY_BODY_BYTES_MAX: Final = 32 << 10
"""Canonical JSON up to which a dictionary is used, bytes: zstd's settings for a dictionary are
those for short content, and a longer body has enough of its own to refer back to."""

_KEPT_MAX: Final = 32
"""Dictionaries for which a thread keeps its compressors: 450 kB each."""


class _Compressors(threading.local):
    """zstd contexts keep state between calls and must not be shared by threads."""

    def __init__(self) -> None:
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        self.compress = compressor.compress
        self.compress_many = compressor.multi_compress_to_buffer
        self._with: dict[KnownDictionary, zstandard.ZstdCompressor] = {}

    def compressor(self, dictionary: KnownDictionary) -> zstandard.ZstdCompressor:
        found = self._with.get(dictionary)
        if found is None:
            if len(self._with) >= _KEPT_MAX:
                self._with.clear()
            found = self._with[dictionary] = dictionary.compressor(_ZSTD_LEVEL)
        return found


_zstd = _Compressors()


def encode_body(body_json: bytes, codec: int = DEFAULT_CODEC) -> bytes:
    """Canonical JSON to stored bytes. Raises ValueError for a codec that does not exist."""
    if codec == CODEC_JSON_ZSTD:
        return b"\x02" + _zstd.compress(body_json)
    if codec == CODEC_MSGPACK_ZLIB:
        return b"\x01" + zlib.compress(msgpack.packb(canonical_json.parse(body_json)))
    raise ValueError(
        f"body codec {codec} does not exist; known are {CODEC_MSGPACK_ZLIB} and {CODEC_JSON_ZSTD};"
        f" {CODEC_JSON_DICTIONARY} needs a dictionary"
    )


def encode_bodies(bodies: Sequence[bytes], codec: int = DEFAULT_CODEC) -> list[bytes]:
    """:func:`encode_body` for many: one call into zstd, so a busy process gives up and takes back
    the interpreter's lock once, not per body."""
    if codec != CODEC_JSON_ZSTD or len(bodies) < _TOGETHER_FROM:
        return [encode_body(body, codec) for body in bodies]
    frames = _zstd.compress_many(list(bodies))
    return [b"\x02" + frames[index].tobytes() for index in range(len(frames))]


def encode_with(dictionary: KnownDictionary, bodies: Sequence[bytes]) -> list[bytes]:
    """Bodies of one column, codec 3."""
    compressor = _zstd.compressor(dictionary)
    prefix = bytes([CODEC_JSON_DICTIONARY]) + dictionary.prefix
    if len(bodies) < _TOGETHER_FROM:
        return [prefix + compressor.compress(body) for body in bodies]
    frames = compressor.multi_compress_to_buffer(list(bodies))
    return [prefix + frames[index].tobytes() for index in range(len(frames))]


def encode_cells(
    cells: Sequence[NewCell],
    dictionaries: Mapping[str, KnownDictionary],
    codec: int = DEFAULT_CODEC,
) -> list[bytes]:
    """The stored bodies of cells: with the dictionary of their column where there is one and the
    body is short enough, in ``codec`` otherwise."""
    if not dictionaries:
        return encode_bodies([cell.body_json for cell in cells], codec)
    by_column: dict[str, list[int]] = {}
    plain: list[int] = []
    for index, cell in enumerate(cells):
        if cell.column_name in dictionaries and len(cell.body_json) <= DICTIONARY_BODY_BYTES_MAX:
            by_column.setdefault(cell.column_name, []).append(index)
        else:
            plain.append(index)
    encoded = dict(
        zip(plain, encode_bodies([cells[index].body_json for index in plain], codec), strict=True)
    )
    for column_name, indexes in by_column.items():
        encoded.update(
            zip(
                indexes,
                encode_with(
                    dictionaries[column_name], [cells[index].body_json for index in indexes]
                ),
                strict=True,
            )
        )
    return [encoded[index] for index in range(len(cells))]
