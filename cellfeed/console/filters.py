"""How pages print values."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

BODY_CHARACTERS_MAX: Final = 400
"""Of a body in a list; a row's page has all of it."""


def number(value: float | None) -> str:
    """With a comma between thousands; empty for None."""
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def ago(since_us: int) -> str:
    """The time since a moment in microseconds since 1970 UTC, as people say it."""
    if not since_us:
        return ""
    seconds = max(0.0, time.time() - since_us / 1e6)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def moment(at_us: int) -> str:
    """A moment in microseconds since 1970 UTC; empty for 0."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds") if at_us else ""


def shortened(body: bytes) -> str:
    """A body in a list."""
    text = body.decode()
    return text if len(text) <= BODY_CHARACTERS_MAX else f"{text[:BODY_CHARACTERS_MAX]}…"


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "number": number,
    "ago": ago,
    "moment": moment,
    "shortened": shortened,
    "path": lambda text: quote(text),
}
