"""Types of CSV fields: how text becomes a value, and which type all values of a field have.

A type is inferred for a field only where every value of the whole file keeps its exact number:

- ``int``: decimal digits without leading zeros, within 64 bits (``007`` and ``+1`` stay text);
- ``float``: a decimal number that a double names exactly, digit for digit (a price of 20 digits
  stays text); whole numbers may stand among them, up to 2**53;
- ``bool``: ``true`` and ``false`` in any case;
- ``text``: everything else, and fields that have no value at all.

An empty value says nothing about a type. It is null in a typed field and "" in text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.limits import JSON_INTEGER_MAX, JSON_INTEGER_MIN

FIELD_TYPES: Final = ("text", "int", "float", "bool", "json")

_INTEGER: Final = re.compile(r"-?[1-9][0-9]*|0").fullmatch
_DECIMAL: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?").fullmatch
_SURELY_EXACT_CHARACTERS: Final = 15
"""A double keeps every decimal number of so many digits."""
_WHOLE_FLOAT_MAX: Final = 1 << 53
_BOOLS: Final = {"true": True, "false": False}


def check_field_types(field_types: Mapping[str, str]) -> Mapping[str, str]:
    """Raises InvalidRequest for a type that does not exist."""
    for name, kind in field_types.items():
        if kind not in FIELD_TYPES:
            raise InvalidRequest(
                f"field {name!r} cannot have type {kind!r}; known are {', '.join(FIELD_TYPES)}"
            )
    return field_types


def not_of_the_type(name: str, value: str, kind: str) -> InvalidRequest:
    """The error of a field whose text is not of its type."""
    return InvalidRequest(
        f"field {name!r} holds {value!r:.80}, which is not"
        f" {'true or false' if kind == 'bool' else f'of type {kind}'}"
    )


class Inference:
    """The types of the columns of a table, from pieces of it, one after another."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._possible: list[tuple[str, ...]] = [("int", "float", "bool")] * len(names)
        self._seen = [False] * len(names)

    def add(self, rows: Sequence[Sequence[str]]) -> None:
        """More rows, each with a value for every name."""
        for index, column in enumerate(zip(*rows, strict=True)):
            if not self._possible[index]:
                continue
            values = set(column)
            values.discard("")
            if values:
                self._seen[index] = True
                self._possible[index] = tuple(
                    kind for kind in self._possible[index] if all(map(_FITS[kind], values))
                )

    def types(self) -> dict[str, str]:
        """The type of each field that is not text."""
        return {
            name: possible[0]
            for name, possible, seen in zip(self._names, self._possible, self._seen, strict=True)
            if possible and seen
        }


def _is_integer(value: str) -> bool:
    return _INTEGER(value) is not None and (
        len(value) < 19 or JSON_INTEGER_MIN <= int(value) <= JSON_INTEGER_MAX
    )


def _is_float(value: str) -> bool:
    if _DECIMAL(value) is None:
        return False
    if len(value) <= _SURELY_EXACT_CHARACTERS and "e" not in value and "E" not in value:
        return True
    number = float(value)
    return (
        math.isfinite(number)
        and Decimal(repr(number)) == Decimal(value)
        and (not _INTEGER(value) or abs(number) <= _WHOLE_FLOAT_MAX)
    )


def _is_bool(value: str) -> bool:
    return value.lower() in _BOOLS


def _float(value: str) -> float:
    number = float(_plain(value))
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _integer(value: str) -> int:
    number = int(_plain(value))
    if not JSON_INTEGER_MIN <= number <= JSON_INTEGER_MAX:
        raise ValueError(value)
    return number


def _plain(value: str) -> str:
    """Python reads ``12_34`` as 1234, and digits of any script."""
    if "_" in value or not value.isascii():
        raise ValueError(value)
    return value


def _json(value: str) -> Any:
    return json.loads(value, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


CONVERT: Final[Mapping[str, Callable[[str], Any]]] = {
    "int": _integer,
    "float": _float,
    "bool": lambda value: _BOOLS[value.lower()],
    "json": _json,
}
"""By type, the function that converts a text that is not empty."""

NOT_OF_THE_TYPE: Final = (ValueError, KeyError, RecursionError)
"""Errors of a conversion for a text of another type."""

_FITS: Final[Mapping[str, Callable[[str], bool]]] = {
    "int": _is_integer,
    "float": _is_float,
    "bool": _is_bool,
}
