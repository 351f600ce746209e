"""UUIDs as 16 bytes and as text, whole arrays at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BYTES: Final = pa.binary(16)
"""UUIDs as the loader has them in memory: a file has them as its format wants."""

_TEXT_BYTES: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)
_DIGIT_PLACES: Final = np.array([at for at in range(_TEXT_BYTES) if at not in _HYPHENS])
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_VALUES: Final = np.full(256, 255, np.uint8)
_VALUES[_DIGITS] = np.arange(16, dtype=np.uint8)


def uuid_texts(values: pa.Array) -> pa.Array:
    """Lower-case text of an array of 16 bytes each; null stays null."""
    plain = values.fill_null(bytes(16))
    raw = np.frombuffer(plain.buffers()[1], np.uint8)[plain.offset * 16 :][: len(plain) * 16]
    digits = np.stack((raw >> 4, raw & 15), axis=-1).reshape(len(plain), 32)
    text = np.full((len(plain), _TEXT_BYTES), ord("-"), np.uint8)
    text[:, _DIGIT_PLACES] = _DIGITS[digits]
    offsets = np.arange(0, (len(plain) + 1) * _TEXT_BYTES, _TEXT_BYTES, dtype=np.int32)
    made = pa.StringArray.from_buffers(len(plain), pa.py_buffer(offsets), pa.py_buffer(text))
    return _with_nulls_of(values, made)


def uuid_bytes(texts: pa.Array) -> pa.Array:
    """16 bytes each of an array of lower-case texts; null stays null. Raises ValueError for another
    text."""
    zero = "00000000-0000-0000-0000-000000000000"
    plain = texts.cast(pa.string()).fill_null(zero)
    offsets = np.frombuffer(plain.buffers()[1], np.int32)[plain.offset :][: len(plain) + 1]
    if len(plain) and not np.all(np.diff(offsets) == _TEXT_BYTES):
        raise ValueError("a text of another length than 36 is no UUID")
    first = int(offsets[0]) if len(plain) else 0
    raw = np.frombuffer(plain.buffers()[2] or b"", np.uint8)[first:][: len(plain) * _TEXT_BYTES]
    text = raw.reshape(len(plain), _TEXT_BYTES)
    digits: NDArray[np.uint8] = _VALUES[text[:, _DIGIT_PLACES]]
    if np.any(digits == 255) or np.any(text[:, list(_HYPHENS)] != ord("-")):
        raise ValueError("a text is no lower-case UUID with hyphens")
    packed = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    made = pa.FixedSizeBinaryArray.from_buffers(BYTES, len(plain), [None, pa.py_buffer(packed)])
    return _with_nulls_of(texts, made)


def _with_nulls_of(given: pa.Array, made: pa.Array) -> pa.Array:
    if not given.null_count:
        return made
    missing = pa.scalar(None, made.type)
    return pa.compute.if_else(given.is_valid(), made, missing)
