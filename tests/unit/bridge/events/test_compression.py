"""Compressed batches: other libraries read out of them just the bytes that went in, of every size
and kind; a batch without records stays as it is."""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any

import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cellfeed.bridge.events.compression import CompressionName, compression_named
from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.record_batch import HEAD_BYTES, encode_record_batch
from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import DataDamaged
from tests.support.event_cells import cells, plain_cells

_CODECS: dict[CompressionName, int] = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ATTRIBUTES = slice(21, 23)


def decompressed(name: CompressionName, text: bytes) -> bytes:
    """By libraries that had no part in it; snappy-java's framing, which none of them knows, by
    hand."""
    match name:
        case "gzip":
            return zlib.decompress(text, 31)
        case "zstd":
            return zstandard.ZstdDecompressor().decompress(text)
        case "lz4":
            return bytes(pyarrow.input_stream(pyarrow.py_buffer(text), compression="lz4").read())
    assert text[:8] == b"\x82SNAPPY\x00"
    at, parts = 16, []
    while at < len(text):
        [size] = struct.unpack_from(">i", text, at)
        block = text[at + 4 : at + 4 + size]
        plain_bytes, shift, position = 0, 0, 0
        while True:  # snappy begins with the plain length as a varint
            plain_bytes |= (block[position] & 0x7F) << shift
            shift, position = shift + 7, position + 1
            if not block[position - 1] & 0x80:
                break
        parts.append(pyarrow.Codec("snappy").decompress(block, plain_bytes, asbytes=True))
        at += 4 + size
    return b"".join(parts)


def compress(name: CompressionName, text: bytes) -> bytes:
    compression = compression_named(name)
    assert compression is not None
    assert compression.attribute == _CODECS[name]
    return compression.compress(text)


@pytest.mark.parametrize("name", _CODECS)
@given(
    text=st.binary(max_size=300)
    | st.binary(min_size=1, max_size=20).map(lambda piece: piece * 9_000)
)
@settings(max_examples=40, deadline=None)
def test_a_compressed_batch_decompresses_to_the_original(
    name: CompressionName, text: bytes
) -> None:
    assert decompressed(name, compress(name, text)) == text


@pytest.mark.parametrize("name", _CODECS)
@pytest.mark.parametrize("size", [32 << 10, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 1_000_000])
def test_incompressible_bytes_survive_compression(name: CompressionName, size: int) -> None:
    text = os.urandom(size)
    found = compress(name, text)
    assert decompressed(name, found) == text
    assert len(found) < size * 1.01 + 100


@pytest.mark.parametrize("name", _CODECS)
@given(given_cells=cells())
@settings(max_examples=25, deadline=None)
def test_a_batch_has_its_records_compressed_behind_the_head_of_the_plain_one(
    name: CompressionName, given_cells: list[StoredCell]
) -> None:
    covered: dict[str, Any] = {"base_offset": 0, "next_offset": 5_000, "leader_epoch": 3}
    plain = encode_record_batch(JsonFormat(), 5, given_cells, **covered)
    batch = encode_record_batch(
        JsonFormat(), 5, given_cells, **covered, compression=compression_named(name)
    )
    if not given_cells:
        assert batch == plain
        return
    assert decompressed(name, batch[HEAD_BYTES:]) == plain[HEAD_BYTES:]
    assert batch[_ATTRIBUTES] == struct.pack(">h", _CODECS[name])
    assert batch[23:HEAD_BYTES] == plain[23:HEAD_BYTES]
    with pytest.raises(
        DataDamaged, match="compressed"
    ):  # its checksum is right, which is looked at before
        list(decode_record_batches(batch))


def test_records_of_one_kind_become_much_smaller() -> None:
    many = plain_cells(500)
    covered: dict[str, Any] = {"base_offset": 0, "next_offset": 500, "leader_epoch": 0}
    plain = encode_record_batch(JsonFormat(), 0, many, **covered)
    for name in _CODECS:
        assert (
            len(
                encode_record_batch(
                    JsonFormat(), 0, many, **covered, compression=compression_named(name)
                )
            )
            < len(plain) / 2
        )
