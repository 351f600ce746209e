"""Limits of a write to the state table, and of the revisions that a history may use: the same on
every engine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.limits import STATE_KEY_BYTES_MAX, STATE_VALUE_BYTES_MAX

REVISIONS_SKIPPED: Final = 1 << 40
"""Revisions that a promotion or a restore leaves out at least, and at most twice: more than a lost
history can have used (a million commits a second for twelve days). 63 bits are enough for four
million of them."""


def revision_of_next_history(last: int) -> int:
    """The first revision of a history that begins where another one, whose commits may be lost, was
    at ``last`` or beyond. Random, so two histories that begin at one place use different revisions.
    """
    return last + REVISIONS_SKIPPED + secrets.randbelow(REVISIONS_SKIPPED)


def check_state_write(write: Mapping[str, bytes | None]) -> None:
    """Raises InvalidRequest for a key or value beyond its limit."""
    for key, value in write.items():
        if not 0 < len(key.encode()) <= STATE_KEY_BYTES_MAX:
            raise InvalidRequest(
                f"state key {key[:80]!r} has {len(key.encode())} bytes; 1 to {STATE_KEY_BYTES_MAX}"
                " are allowed"
            )
        if value is not None and len(value) > STATE_VALUE_BYTES_MAX:
            raise InvalidRequest(
                f"the value of state key {key!r} has {len(value)} bytes; at most"
                f" {STATE_VALUE_BYTES_MAX} are allowed"
            )
