"""Values of indexed fields: from JSON to the values of the index tables, and back.

A table column holds either a 64-bit integer or bytes, and compares as those do: the same on SQLite
and MariaDB, without a word about collations or decimal arithmetic. Each type's encoding keeps the
order of its values.

=========  ===============================================  =======================================
type       values in a body                                 in the table
=========  ===============================================  =======================================
uuid       the text of a UUID                               16 bytes
datetime   ISO 8601 text; without a zone it is UTC          integer: microseconds since 1970 UTC
string     text of at most ``STRING_BYTES_MAX`` bytes of    those bytes: the order is that of code
           UTF-8                                            points
int        an integer of 64 bits with sign                  integer
float      a number that a double holds exactly             integer: the double's bits, in an
                                                            encoding that orders as doubles do
bool       true, false                                      integer 0, 1
decimal    a number, or its text: 20 digits before the      16 bytes: an offset number of units of
           point and 18 behind it                           1e-18
=========  ===============================================  =======================================

A value of another type is **rejected**: the field counts as missing, and is counted. Results show
values in one form (:func:`decode`): JSON's own, with UUIDs in lower case, moments in UTC with
``Z``, decimals without needless zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from cellfeed.store.cells.cell import check_row_key, microseconds
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.errors import InvalidRequest, InvalidRowKey

STRING_BYTES_MAX: Final = 512
"""UTF-8 bytes of an indexed string: two of them and a row key fit a key of InnoDB, 3,072 bytes."""

Encoded = int | bytes
"""A value in a table column."""

JsonValue = str | int | float | bool

_INT_MIN: Final = -(1 << 63)
_INT_MAX: Final = (1 << 63) - 1
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_DATETIME_MIN: Final = (1 - _EPOCH_ORDINAL) * _DAY_US
_DATETIME_MAX: Final = (date.max.toordinal() + 1 - _EPOCH_ORDINAL) * _DAY_US - 1
_MINUTES: Final = tuple(f"{minute // 60:02d}:{minute % 60:02d}:" for minute in range(24 * 60))
_DECIMAL_SCALE: Final = 18
_DECIMAL_LIMIT: Final = 10**38
_DECIMAL_OFFSET: Final = 1 << 127


class WrongType(Exception):
    """A value that is not of its field's type."""


def _uuid(value: object) -> Encoded:
    if isinstance(value, UUID | str):
        try:
            return check_row_key(value)
        except InvalidRowKey:
            pass
    raise WrongType


def _datetime(value: object) -> Encoded:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise WrongType from None
    if not isinstance(value, datetime):
        raise WrongType
    found = microseconds(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    if not _DATETIME_MIN <= found <= _DATETIME_MAX:
        raise WrongType  # in its own time zone it is in the years 1 to 9999, in UTC it is not
    return found


def _string(value: object) -> Encoded:
    if not isinstance(value, str):
        raise WrongType
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise WrongType from None
    if len(encoded) > STRING_BYTES_MAX:
        raise WrongType
    return encoded


def _int(value: object) -> Encoded:
    if type(value) is not int or not _INT_MIN <= value <= _INT_MAX:
        raise WrongType
    return value


def _float(value: object) -> Encoded:
    if type(value) not in (int, float):
        raise WrongType
    try:
        as_float = float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise WrongType from None
    if as_float != value or as_float in (float("inf"), float("-inf")):
        raise WrongType
    bits = int.from_bytes(
        struct.pack(">d", as_float + 0.0), "big", signed=True
    )  # -0.0 + 0.0 is 0.0
    return bits if bits >= 0 else bits ^ _INT_MAX


def _bool(value: object) -> Encoded:
    if type(value) is not bool:
        raise WrongType
    return int(value)


def _decimal(value: object) -> Encoded:
    if type(value) not in (str, int, float, Decimal):
        raise WrongType
    text = repr(value) if isinstance(value, float) else str(value)
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        raise WrongType from None
    if not isinstance(exponent, int):
        raise WrongType  # infinite, or no number
    # By hand: decimal arithmetic rounds to a context's precision.
    shown = "".join(map(str, digits)).lstrip("0")
    units = shown.rstrip("0")
    exponent += len(shown) - len(units) + _DECIMAL_SCALE
    if units and (exponent < 0 or len(units) + exponent > 38):
        raise WrongType
    number = int(units + "0" * exponent) if units else 0
    return (_DECIMAL_OFFSET + (-number if sign else number)).to_bytes(16, "big")


_ENCODERS: Final[dict[str, Callable[[object], Encoded]]] = {
    "uuid": _uuid,
    "datetime": _datetime,
    "string": _string,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "decimal": _decimal,
}

TYPES: Final = tuple(_ENCODERS)
BYTES_TYPES: Final = {"uuid": 16, "string": STRING_BYTES_MAX, "decimal": 16}
"""Types whose table column holds bytes, and how many at most; the others hold integers."""


def encoder(kind: str) -> Callable[[object], Encoded]:
    """The encoder of values of that type; it raises WrongType."""
    return _ENCODERS[kind]


def _shown_float(value: int) -> float:
    (as_float,) = struct.unpack(">d", struct.pack(">q", value if value >= 0 else value ^ _INT_MAX))
    return float(as_float)


def _shown_decimal(value: bytes) -> str:
    number = int.from_bytes(value, "big") - _DECIMAL_OFFSET
    digits = f"{abs(number):0{_DECIMAL_SCALE + 1}d}"
    text = f"{digits[:-_DECIMAL_SCALE]}.{digits[-_DECIMAL_SCALE:]}".rstrip("0").rstrip(".")
    return f"-{text}" if number < 0 else text


@lru_cache(maxsize=10_000)
def _shown_day(days: int) -> str:
    return date.fromordinal(_EPOCH_ORDINAL + days).isoformat()


def _shown_datetime(value: int) -> str:
    """As ``isoformat`` does it, in less than half the time: days come again and again, and so do
    minutes."""
    days, of_day = divmod(value, _DAY_US)
    minute, of_minute = divmod(of_day, 60_000_000)
    second, rest = divmod(of_minute, 1_000_000)
    return (
        f"{_shown_day(days)}T{_MINUTES[minute]}{second:02d}.{rest:06d}Z"
        if rest
        else f"{_shown_day(days)}T{_MINUTES[minute]}{second:02d}Z"
    )


_DECODERS: Final[dict[str, Callable[[Any], JsonValue]]] = {
    "uuid": lambda value: row_key_text(value).decode(),
    "datetime": _shown_datetime,
    "string": bytes.decode,
    "int": int,
    "float": _shown_float,
    "bool": bool,
    "decimal": _shown_decimal,
}


def decoder(kind: str) -> Callable[[Encoded], JsonValue]:
    """The function that puts a value of that type into the form of results."""
    return _DECODERS[kind]


def decode(kind: str, value: Encoded) -> JsonValue:
    """The value in the form of results."""
    return _DECODERS[kind](value)


def shard_text(kind: str, value: Encoded) -> bytes:
    """The text whose partition is the entry's shard: a UUID's is that of a row with this key."""
    shown = decode(kind, value)
    return (str(shown).lower() if kind == "bool" else str(shown)).encode()


def encode_given(name: str, kind: str, value: Any) -> Encoded:
    """A value that a caller filters by. Raises InvalidRequest."""
    try:
        return _ENCODERS[kind](value)
    except WrongType:
        raise InvalidRequest(
            f"field {name}: {ascii(value)[:80]} is not a value of type {kind}"
        ) from None
