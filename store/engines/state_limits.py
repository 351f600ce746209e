"""What a write to the state table may hold, the same on every engine."""

from __future__ import annotations

from collections.abc import Mapping

from store.errors import InvalidRequest
from store.limits import STATE_KEY_BYTES_MAX, STATE_VALUE_BYTES_MAX


def check_state_write(write: Mapping[str, bytes | None]) -> None:
    """Raises InvalidRequest for a key or value beyond its limit."""
    for key, value in write.items():
        if not 0 < len(key.encode()) <= STATE_KEY_BYTES_MAX:
            raise InvalidRequest(f"state key {key[:80]!r} has {len(key.encode())} bytes; 1 to {STATE_KEY_BYTES_MAX} are allowed")
        if value is not None and len(value) > STATE_VALUE_BYTES_MAX:
            raise InvalidRequest(f"the value of state key {key!r} has {len(value)} bytes; at most {STATE_VALUE_BYTES_MAX} are allowed")
