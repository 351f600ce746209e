"""Cells: ``(row_key, column_name, ref_key) -> body``, written once; and the possible results of a
put.

Three shapes, from the caller inwards:

- :class:`NewCell` is one that a caller wants to write; its body is canonical JSON already (see
  :mod:`cellfeed.store.cells.canonical_json`).
- :class:`StoredCell` is one row of a shard's log as the engine keeps it, its body still encoded.
  Log readers that do not need the body as Python objects (the gateway, digests, the exporter) stay
  with this one.
- :class:`Cell` is the one that readers of the API get.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple
from uuid import UUID

from cellfeed.store.cells import canonical_json
from cellfeed.store.errors import InvalidColumn, InvalidRefKey, InvalidRowKey, RowErased
from cellfeed.store.limits import COLUMN_NAME_BYTES_MAX, REF_KEY_MAX, REF_KEY_MIN

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ERASED_COLUMN: Final = "$erased"
"""The column of the cell that marks an erasure in the log (E20): one for each erased row, with ref
key 0 and no body. Nobody can put one."""

RESTORED_COLUMN: Final = "RESTORED"
"""The column of the cell that a restore puts behind ids that it leaves out: its body says which
(:mod:`cellfeed.store.backups.restore`)."""

ERASED_JSON: Final = b"null"
"""The text in the place of an erased cell's body wherever bodies are canonical JSON, digests among
it. No body that was put is that: they are objects."""


class NewCell(NamedTuple):
    """A cell to be written. Build it with :func:`new_cell`, which checks every part."""

    row_key: bytes
    column_name: str
    ref_key: int
    body_json: bytes

    @property
    def triple(self) -> Triple:
        return Triple(self.row_key, self.column_name, self.ref_key)


class Triple(NamedTuple):
    """The lasting name of a cell: 16 bytes of row key, column name, ref key."""

    row_key: bytes
    column_name: str
    ref_key: int


class StoredCell(NamedTuple):
    """One entry of a shard's log. ``body`` is encoded (:mod:`cellfeed.store.cells.body_codec`);
    ``created_at_us`` is microseconds since 1970 UTC."""

    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    created_at_us: int
    body: bytes


@dataclass(frozen=True)
class Cell:
    """A cell as readers see it. ``shard`` and ``added_id`` are its place in the log (Kafka
    partition and offset). ``stale``: it came from a minion, because the read asked for one or the
    master was away: a later cell may be missing."""

    row_key: UUID
    column_name: str
    ref_key: int
    body_json: bytes
    shard: int
    added_id: int
    created_at: datetime
    stale: bool = False

    @property
    def erased(self) -> bool:
        """Whether the body was erased, or the cell only marks an erasure (``ERASED_COLUMN``). Only
        reads of logs show such cells."""
        return self.body_json == ERASED_JSON

    @cached_property
    def body(self) -> dict[str, Any]:
        """The body as Python objects; equal to the one that was put. Each cell decodes once, on
        first use. Raises RowErased for an erased cell."""
        if self.erased:
            raise RowErased(
                f"cell ({self.row_key}, {shown(self.column_name)}, {self.ref_key}) at"
                f" {self.shard}/{self.added_id} was erased: it has no body"
            )
        return canonical_json.parse(self.body_json)


def check_row_key(row_key: object) -> bytes:
    """The 16 bytes of a row key given as :class:`~uuid.UUID`, as 36-character text or as 16 bytes.
    Raises InvalidRowKey."""
    if isinstance(row_key, UUID):
        return row_key.bytes
    if isinstance(row_key, bytes) and len(row_key) == 16:
        return row_key
    if (
        isinstance(row_key, str)
        and len(row_key) == 36
        and row_key[8] == row_key[13] == row_key[18] == row_key[23] == "-"
    ):
        # Four times faster than uuid.UUID. 32 characters make 16 bytes only when each is a
        # hexadecimal digit (fromhex skips white space).
        try:
            parsed = bytes.fromhex(row_key.replace("-", ""))
        except ValueError:
            parsed = b""
        if len(parsed) == 16:
            return parsed
    raise InvalidRowKey(
        f"row key {shown(row_key)} is not a UUID; a row key is a uuid.UUID, or text of the form"
        " xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
    )


def check_column_name(column_name: object) -> str:
    """A column name: 1 to 128 bytes of UTF-8 without control characters. Raises InvalidColumn.

    Names are compared byte for byte: ``base``, ``BASE`` and a name in another Unicode normal form
    are different columns.
    """
    if type(column_name) is not str:
        raise InvalidColumn(
            f"column name {shown(column_name)} is {type(column_name).__name__}, not text"
        )
    if (
        column_name.isascii()
        and column_name.isprintable()
        and 0 < len(column_name) <= COLUMN_NAME_BYTES_MAX
    ):
        return column_name
    try:
        encoded = column_name.encode()
    except UnicodeEncodeError:
        raise InvalidColumn(
            f"column name {shown(column_name)} holds a lone surrogate, which no encoding can carry"
        ) from None
    if not 0 < len(encoded) <= COLUMN_NAME_BYTES_MAX:
        raise InvalidColumn(
            f"column name {shown(column_name)} has {len(encoded)} bytes; 1 to"
            f" {COLUMN_NAME_BYTES_MAX} are allowed"
        )
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in column_name):
        raise InvalidColumn(f"column name {shown(column_name)} holds a control character")
    return column_name


def check_new_column(column_name: object) -> str:
    """A new cell's column name: any but the one that marks erasures. Raises InvalidColumn."""
    if column_name == ERASED_COLUMN:
        raise InvalidColumn(
            f"column name {ERASED_COLUMN!r} is the log's own: it marks erased rows; put under"
            " another name"
        )
    return check_column_name(column_name)


def check_ref_key(ref_key: object) -> int:
    """A ref key: a signed 64-bit integer (bool is not one). Raises InvalidRefKey."""
    if type(ref_key) is not int:
        raise InvalidRefKey(f"ref key {shown(ref_key)} is {type(ref_key).__name__}, not an integer")
    if not REF_KEY_MIN <= ref_key <= REF_KEY_MAX:
        raise InvalidRefKey(f"ref key {ref_key} is outside the signed 64-bit range")
    return ref_key


def new_cell(row_key: object, column_name: object, ref_key: object, body: object) -> NewCell:
    """A checked cell, ready to be put. ``body`` is a dict;
    :func:`cellfeed.store.cells.canonical_json.canonical` names the values that it may hold."""
    return NewCell(
        check_row_key(row_key),
        check_new_column(column_name),
        check_ref_key(ref_key),
        canonical_json.canonical(body),
    )


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970 UTC of an aware datetime."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment(created_at_us: int) -> datetime:
    """The aware datetime of so many microseconds since 1970 UTC."""
    return EPOCH + timedelta(microseconds=created_at_us)


def shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
