"""A cell as a record carries it, checked for values that no cell can have."""

from __future__ import annotations

from binascii import unhexlify
from typing import Final, NamedTuple

from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX, REF_KEY_MAX, REF_KEY_MIN, SHARDS_STORED_MAX

MOMENT_US_MAX: Final = 253_402_300_800_000_000
"""Microseconds from 1970 to the year 10000, which no calendar of ours reaches: a later moment is
damage."""

_HYPHEN: Final = ord("-")


class DecodedEvent(NamedTuple):
    """A cell as a record carries it. ``row_key`` is 16 bytes; ``body_json`` canonical JSON;
    ``created_at_us`` microseconds since 1970 UTC."""

    shard: int
    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    created_at_us: int
    body_json: bytes


def checked_event(event: DecodedEvent) -> DecodedEvent:
    if not (
        0 <= event.shard < SHARDS_STORED_MAX
        and 0 <= event.added_id <= ADDED_ID_MAX
        and REF_KEY_MIN <= event.ref_key <= REF_KEY_MAX
    ):
        raise DataDamaged(
            f"a record names shard {event.shard}, added_id {event.added_id} and ref key"
            f" {event.ref_key}, which no cell can have"
        )
    if not 0 <= event.created_at_us < MOMENT_US_MAX:
        raise DataDamaged(
            f"a record was made at {event.created_at_us} microseconds since 1970, which is no"
            " moment of a log"
        )
    return event


def row_key_of(key: bytes) -> bytes:
    digits = key.replace(b"-", b"")
    if not (
        len(key) == 36
        and len(digits) == 32
        and key[8] == key[13] == key[18] == key[23] == _HYPHEN
        and key == key.lower()
    ):
        raise DataDamaged(f"a record's row key {key[:40]!r} is not the lower-case text of a UUID")
    return unhexlify(digits)
