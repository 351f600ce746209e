"""How a body lies on disk, and its decoding: one codec byte, then the compressed body. Codecs are
added, never changed, so old cells stay readable for ever.

====  =============================================  ===============================================
byte  content                                        why
====  =============================================  ===============================================
1     MessagePack, zlib                              Uber's Schemaless article ("Designing
                                                     Schemaless", 2016)
2     canonical JSON, zstd level 3 (default)         no transcoding for the feed; a third of the CPU
3     four bytes: a dictionary's id; canonical       short bodies of a column have most in common:
      JSON, zstd level 3 with that dictionary        that is in the dictionary
                                                     (:mod:`cellfeed.store.dictionaries`) and not in
                                                     each body
4     nothing                                        the body was erased (E20), or never was one:
                                                     the log's entry of an erasure
====  =============================================  ===============================================

The body itself names the dictionary that it needs. So a column may change its dictionary at any
time, and old bodies keep theirs. A frame has a checksum of its content: bytes that were decoded
with a wrong dictionary are refused, not shown.

Decompression is bounded by ``BODY_BYTES_MAX``: damaged or hostile bytes cost one error, never the
memory of the process.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgpack
import zstandard

from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.cell import ERASED_JSON
from cellfeed.store.cells.dictionary import ID_BYTES
from cellfeed.store.cells.known_dictionaries import forget_all, known_dictionary
from cellfeed.store.errors import CellfeedError, DataDamaged
from cellfeed.store.limits import BODY_BYTES_MAX

CODEC_MSGPACK_ZLIB: Final = 1
CODEC_JSON_ZSTD: Final = 2
CODEC_JSON_DICTIONARY: Final = 3
CODEC_ERASED: Final = 4
DEFAULT_CODEC: Final = CODEC_JSON_ZSTD

ERASED_BODY: Final = bytes([CODEC_ERASED])
"""The bytes in the place of a body that was erased."""


_DECODED_TOGETHER_FROM: Final = 64
"""Bodies from which one call for all is cheaper than a call each: it costs some 14 µs before the
first body, and saves half a microsecond of each."""

_CHECKSUMMED: Final = 4
"""The bit of a frame's descriptor, behind its four bytes of magic, that says that a checksum of the
content follows it."""


_DICTIONARY_FRAME: Final = 1 + ID_BYTES
"""Where the frame begins behind the codec and the dictionary's id."""

_JSON_ZSTD_HEAD: Final = bytes([CODEC_JSON_ZSTD]) + zstandard.FRAME_HEADER
"""The beginning of every body of codec 2: as many bytes as name the dictionary of one of codec
3."""

_FRAME_HEAD_BYTES_MAX: Final = 18
"""The head of a zstd frame, which has the size of its content."""

_JSON_OF_MSGPACK_MAX: Final = 6
"""Bytes of JSON for one of MessagePack at most: a control character is written as ``\\u0001``."""

_KEPT_MAX: Final = 32
"""Dictionaries for which a thread keeps its decompressors: 20 kB each."""


_Decompress = Callable[..., bytes]
_DecompressMany = Callable[..., zstandard.BufferWithSegmentsCollection]


class _Decompressors(threading.local):
    """zstd contexts keep state between calls and must not be shared by threads."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 23)
        self.decompress = decompressor.decompress
        self.decompress_many = decompressor.multi_decompress_to_buffer
        self.decompress_with: dict[bytes, _Decompress] = {}
        """By a dictionary's id, as bodies have it: the quickest way, for all but the first body of
        each."""
        self.decompress_many_with: dict[bytes, _DecompressMany] = {}

    def learn(self, prefix: bytes) -> _Decompress:
        """The decompression with the dictionary of this id. Raises as :func:`known_dictionary`."""
        decompressor = known_dictionary(int.from_bytes(prefix)).decompressor()
        found: _Decompress = decompressor.decompress
        if len(self.decompress_with) >= _KEPT_MAX:
            self.decompress_with.clear()
            self.decompress_many_with.clear()
        self.decompress_with[prefix], self.decompress_many_with[prefix] = (
            found,
            decompressor.multi_decompress_to_buffer,
        )
        return found

    def many(self, head: bytes) -> _DecompressMany | None:
        """The function that decompresses bodies that begin with ``head`` together; None for those
        that are decoded one by one. Raises as :func:`known_dictionary`."""
        if head == _JSON_ZSTD_HEAD:
            return self.decompress_many
        if head[:1] != bytes([CODEC_JSON_DICTIONARY]):
            return None
        prefix = head[1:]
        if prefix not in self.decompress_many_with:
            self.learn(prefix)
        return self.decompress_many_with[prefix]


_zstd = _Decompressors()


def decode_body(stored: bytes) -> bytes:
    """Stored bytes to canonical JSON; ``ERASED_JSON`` for a body that was erased. Raises
    DataDamaged when no function of
    :mod:`cellfeed.store.cells.body_encoding` wrote them, or their dictionary is lost;
    StorageUnavailable when the dictionary has to be looked up and cannot."""
    try:
        if stored[0] == CODEC_JSON_DICTIONARY:
            prefix = stored[1:_DICTIONARY_FRAME]
            decompress = _zstd.decompress_with.get(prefix) or _zstd.learn(prefix)
            return decompress(_checked_frame(stored[_DICTIONARY_FRAME:]), allow_extra_data=False)
        if stored[0] == CODEC_JSON_ZSTD:
            return _zstd.decompress(_checked_frame(stored[1:]), allow_extra_data=False)
        if stored[0] == CODEC_MSGPACK_ZLIB:
            return canonical_json.canonical(
                msgpack.unpackb(_inflate(stored[1:]), strict_map_key=True)
            )
        if stored == ERASED_BODY:
            return ERASED_JSON
    except (CellfeedError, MemoryError):
        raise
    except Exception as error:
        raise DataDamaged(
            f"a stored body of {len(stored)} bytes does not decode: {type(error).__name__}: {error}"
        ) from error
    raise DataDamaged(f"a stored body names codec {stored[0]}, which this version does not know")


def decode_bodies(stored: Sequence[bytes]) -> list[bytes]:
    """:func:`decode_body` for many, in less time: one call into zstd for all of one codec and
    dictionary, and the interpreter's lock is free meanwhile.

    The same bodies come out, each whole by its checksum. Bytes behind the end of a frame alone are
    not looked for here; every other error is that of the body that has it. Raises as
    :func:`decode_body`.
    """
    heads = {body[:_DICTIONARY_FRAME] for body in stored}
    if len(stored) < _DECODED_TOGETHER_FROM * len(heads):
        return [decode_body(body) for body in stored]
    if len(heads) == 1:
        return _decode_together(heads.pop(), stored)
    places: dict[bytes, list[int]] = {head: [] for head in heads}
    for place, body in enumerate(stored):
        places[body[:_DICTIONARY_FRAME]].append(place)
    decoded: dict[int, bytes] = {}
    for head, its in places.items():
        decoded.update(
            zip(its, _decode_together(head, [stored[place] for place in its]), strict=True)
        )
    return [decoded[place] for place in range(len(stored))]


def _decode_together(head: bytes, stored: Sequence[bytes]) -> list[bytes]:
    """Bodies that all begin with ``head``."""
    many = _zstd.many(head)
    if many is not None:
        start = 1 if head == _JSON_ZSTD_HEAD else _DICTIONARY_FRAME
        frames = [body[start:] for body in stored]
        with suppress(
            zstandard.ZstdError, ValueError
        ):  # one of them is damaged: it is found below, and named
            sizes = list(map(zstandard.frame_content_size, frames))
            checksummed = all(
                descriptor & _CHECKSUMMED
                for descriptor in {frame[len(zstandard.FRAME_HEADER)] for frame in frames}
            )
            if checksummed and min(sizes) >= 0 and max(sizes) <= BODY_BYTES_MAX:
                found = many(frames)
                return [found[index].tobytes() for index in range(len(found))]
    return [decode_body(body) for body in stored]


def is_erased(stored: bytes) -> bool:
    """Whether a stored body is the mark of an erased one."""
    return stored == ERASED_BODY


def decoded_bytes_bound(stored: bytes) -> int:
    """At most so many bytes will :func:`decode_body` give: a reader plans its memory by it, without
    decoding. None of a damaged one: it raises nothing."""
    if stored == ERASED_BODY:
        return len(ERASED_JSON)
    if stored[:1] == bytes([CODEC_MSGPACK_ZLIB]):
        with suppress(DataDamaged, zlib.error):
            return min(_JSON_OF_MSGPACK_MAX * len(_inflate(stored[1:])), BODY_BYTES_MAX)
    start = _DICTIONARY_FRAME if stored[:1] == bytes([CODEC_JSON_DICTIONARY]) else 1
    with suppress(zstandard.ZstdError):
        size = int(zstandard.frame_content_size(stored[start : start + _FRAME_HEAD_BYTES_MAX]))
        return size if 0 <= size <= BODY_BYTES_MAX else 0
    return 0


def dictionaries_named(stored: Iterable[bytes]) -> set[int]:
    """The ids of the dictionaries that stored bodies name."""
    heads = {body[:_DICTIONARY_FRAME] for body in stored}
    return {int.from_bytes(head[1:]) for head in heads if head[0] == CODEC_JSON_DICTIONARY}


def forget_dictionaries() -> None:
    """As in a process that has just begun. For tests: a reader elsewhere lacks the dictionaries
    that this process has met."""
    global _zstd
    forget_all()
    _zstd = _Decompressors()


def _checked_frame(frame: bytes) -> bytes:
    """The frame names its content size; zstd refuses content of another size, and this a lying size
    before. Raises DataDamaged."""
    if not 0 <= zstandard.frame_content_size(frame) <= BODY_BYTES_MAX:
        raise DataDamaged(
            f"a stored body claims more than {BODY_BYTES_MAX} bytes, or does not say how many"
        )
    return frame


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    # MessagePack of a body can exceed its JSON only by a few bytes per float (9 against "0.0"):
    # three times is beyond any real body.
    limit = 3 * BODY_BYTES_MAX
    content = inflater.decompress(data, limit)
    if inflater.unconsumed_tail or not inflater.eof or inflater.unused_data:
        raise DataDamaged(
            "a stored body is cut short, has bytes behind its end, or inflates beyond its limit"
        )
    return content
