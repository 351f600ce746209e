"""Text, numbers, symbols, booleans and null as Avro binary; how JSON stands for them is said in
:mod:`cellfeed.bridge.typed.body_encoder`."""

from __future__ import annotations

import struct
from typing import Any, Final

from cellfeed.bridge.events.varints import SMALL, VARINTS, varint
from cellfeed.bridge.typed.avro_types import AvroType
from cellfeed.bridge.typed.logical_types import Encode
from cellfeed.bridge.typed.mismatch import SchemaMismatch, kind_of

_TEXTS_KEPT_MAX: Final = 1_000
"""Encoded texts that each string field keeps, of those that come again and again: a bound on
memory."""

_TEXT_KEPT_CHARACTERS_MAX: Final = 40


def string_encoder() -> Encode:
    kept: dict[str, bytes] = {}

    def encode(value: Any) -> bytes:
        if type(value) is not str:
            raise SchemaMismatch(f"is {kind_of(value)}, not text")
        found = kept.get(value)
        if found is None:
            text = value.encode()
            length = len(text)
            found = (VARINTS[length] if length < SMALL else varint(length)) + text
            if length <= _TEXT_KEPT_CHARACTERS_MAX and len(kept) < _TEXTS_KEPT_MAX:
                kept[value] = found
        return found

    return encode


def enum_encoder(avro: AvroType) -> Encode:
    indexes = {symbol: varint(index) for index, symbol in enumerate(avro.symbols)}

    def encode(value: Any) -> bytes:
        found = indexes.get(value) if type(value) is str else None
        if found is None:
            raise SchemaMismatch(
                f"is {kind_of(value)}{f' {value[:40]!r}' if type(value) is str else ''}, none of"
                f" the symbols of enum {avro.name}"
            )
        return found

    return encode


def integer_encoder(bits: int, kind: str) -> Encode:
    least, most = -(1 << bits), (1 << bits) - 1

    def encode(value: Any) -> bytes:
        if type(value) is not int:
            raise SchemaMismatch(f"is {kind_of(value)}, not an integer")
        if 0 <= value < SMALL:
            return VARINTS[value]
        if not least <= value <= most:
            raise SchemaMismatch(f"is {value}, beyond {kind}'s {bits + 1} bits")
        return varint(value)

    return encode


def floating_encoder(layout: str, kind: str) -> Encode:
    form = struct.Struct(layout)
    pack, unpack = form.pack, form.unpack

    def encode(value: Any) -> bytes:
        if type(value) is not float and type(value) is not int:
            raise SchemaMismatch(f"is {kind_of(value)}, not a number")
        try:
            packed = pack(value)
        except OverflowError:
            raise SchemaMismatch(f"is {value}, beyond {kind}") from None
        if unpack(packed)[0] != value:
            raise SchemaMismatch(f"is {value}, which {kind} does not hold exactly")
        return packed

    return encode


def encode_boolean(value: Any) -> bytes:
    if type(value) is not bool:
        raise SchemaMismatch(f"is {kind_of(value)}, not true or false")
    return b"\1" if value else b"\0"


def encode_null(value: Any) -> bytes:
    if value is not None:
        raise SchemaMismatch(f"is {kind_of(value)}, not null")
    return b""
