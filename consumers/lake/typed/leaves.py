"""Scalars of bodies as columns: whole lists of decoded JSON values at a time.

Each function makes an array, or raises ``ArrowInvalid``, ``OverflowError`` or ValueError when one
of the values is not exactly of its type. The forms of text are those of
:mod:`cellfeed.bridge.typed.logical_types`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cellfeed.bridge.typed.avro_types import AvroType
from cellfeed.consumers.lake.typed.uuid_arrays import BYTES, uuid_bytes

Build = Callable[[Sequence[Any]], pa.Array]

DECIMAL_DIGITS_MAX: Final = 38
"""Precision of a decimal column in either format."""

_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = r"T[0-9]{2}:[0-9]{2}:[0-9]{2}"
_YEAR_ZERO: Final = r"^0000"


def leaf(avro: AvroType) -> tuple[pa.DataType, Build] | None:
    """The column's type of a scalar and how its values are read. Integers have 64 bits and
    fractions double precision, so that a wider version of a schema changes no column. None for a
    type that no column has."""
    match avro.logical:
        case "uuid":
            return BYTES, lambda values: uuid_bytes(pa.array(values, pa.string()))
        case "decimal":
            if avro.precision > DECIMAL_DIGITS_MAX:
                return None
            return pa.decimal128(avro.precision, avro.scale), partial(_decimals, avro)
        case "date":
            return pa.date32(), _dates
        case "":
            return _PLAIN.get(avro.kind)
        case logical:
            of_zone = pa.timestamp("us", tz=None if logical.startswith("local-") else "UTC")
            return of_zone, partial(_moments, of_zone, logical.endswith("millis"))


def _decimals(avro: AvroType, values: Sequence[Any]) -> pa.Array:
    behind = rf"\.[0-9]{{{avro.scale}}}" if avro.scale else ""
    texts = _texts(values, rf"^-?(?:0|[1-9][0-9]*){behind}$", r"^-[0.]*$")
    return texts.cast(pa.decimal128(avro.precision, avro.scale))


def _dates(values: Sequence[Any]) -> pa.Array:
    return _texts(values, f"{_DATE}$", _YEAR_ZERO).cast(pa.date32())


def _moments(kind: Any, thousandths: bool, values: Sequence[Any]) -> pa.Array:
    fraction = r"\.[0-9]{3}" if thousandths else r"(?:\.[0-9]{6})?"
    zone = "" if kind.tz is None else "Z"
    refused = _YEAR_ZERO if thousandths else rf"{_YEAR_ZERO}|\.000000"
    return _texts(values, f"{_DATE}{_TIME}{fraction}{zone}$", refused).cast(kind)


def _texts(values: Sequence[Any], form: str, refused: str) -> pa.Array:
    texts = pa.array(values, pa.string())
    fits = pc.match_substring_regex(texts, form)
    wrong = pc.match_substring_regex(texts, refused)
    if pc.any(pc.or_(pc.invert(fits), wrong)).as_py():
        raise ValueError("a text has another form")
    return texts


def _floats(values: Sequence[Any], *, single: bool) -> pa.Array:
    try:
        made = pa.array(values, pa.float64())
    except pa.ArrowInvalid:
        # Integers of more than 53 bits; a double has some of them exactly.
        doubles = [None if each is None else float(each) for each in values]
        if doubles != list(values):
            raise
        made = pa.array(doubles, pa.float64())
    if single:
        plain = made.fill_null(0.0).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            if not np.array_equal(plain.astype(np.float32).astype(np.float64), plain):
                raise ValueError("a number is not exactly a float")
    return made


def _of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    return pa.array(values, kind)


_PLAIN: Final[dict[str, tuple[pa.DataType, Build]]] = {
    "boolean": (pa.bool_(), partial(_of, pa.bool_())),
    "int": (pa.int64(), partial(_of, pa.int64())),
    "long": (pa.int64(), partial(_of, pa.int64())),
    "float": (pa.float64(), partial(_floats, single=True)),
    "double": (pa.float64(), partial(_floats, single=False)),
    "string": (pa.string(), partial(_of, pa.string())),
    "enum": (pa.string(), partial(_of, pa.string())),
}
