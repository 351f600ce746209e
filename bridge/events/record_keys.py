"""Row keys as record keys, many at once: a batch asks for thousands, and one pass over all their
bytes costs a quarter of a call for each.

The pass is made of few calls that keep the interpreter's lock. One that gives it up, as numpy's do,
waits for it up to five milliseconds where other threads are busy. That is longer than all the rest
takes.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from typing import Final

from cellfeed.store.cells.sharding import row_key_text

_TEXT_BYTES: Final = 36
_TOGETHER_FROM: Final = 24
"""Keys from which one pass wins over a call for each."""

_PLACES: Final = tuple(place for place in range(_TEXT_BYTES) if place not in (8, 13, 18, 23))
"""Of the hexadecimal digits in a UUID's text; between them are its hyphens."""


def record_keys(row_keys: Sequence[bytes]) -> list[bytes]:
    """:func:`cellfeed.store.cells.sharding.row_key_text` of each 16-byte row key."""
    if len(row_keys) < _TOGETHER_FROM:
        return [row_key_text(row_key) for row_key in row_keys]
    digits = hexlify(b"".join(row_keys))
    texts = bytearray(b"-") * (_TEXT_BYTES * len(row_keys))
    for digit, place in enumerate(_PLACES):
        texts[place::_TEXT_BYTES] = digits[digit :: len(_PLACES)]
    joined = bytes(texts)
    return [joined[at : at + _TEXT_BYTES] for at in range(0, len(joined), _TEXT_BYTES)]
