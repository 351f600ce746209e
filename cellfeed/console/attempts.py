"""Log-ins that failed, by address: guesses are few a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cellfeed.store.errors import Overloaded

FAILED_MAX: Final = 10
WITHIN_S: Final = 60.0
"""After ``FAILED_MAX`` failures in ``WITHIN_S`` seconds an address waits for the rest of them."""

ADDRESSES_MAX: Final = 10_000
"""Addresses that are counted by themselves; beyond them all others share one count."""

_OTHERS: Final = "*"


class FailedLogins:
    """Used on the event loop. ``clock_s``: seconds that never go back."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._counts: dict[str, tuple[float, int]] = {}
        """By address when the time began, and the failures since."""

    def check(self, address: str) -> None:
        """Raises Overloaded for an address that failed too often just now."""
        began_s, count = self._counts.get(self._counted_as(address), (0.0, 0))
        left_s = began_s + WITHIN_S - self._clock_s()
        if count >= FAILED_MAX and left_s > 0:
            raise Overloaded(
                f"{count} log-ins from this address failed: try again in {left_s:.0f} s"
            )

    def failed(self, address: str) -> None:
        now_s = self._clock_s()
        key = self._counted_as(address)
        began_s, count = self._counts.get(key, (now_s, 0))
        if now_s - began_s > WITHIN_S:
            began_s, count = now_s, 0
        self._counts[key] = began_s, count + 1

    def _counted_as(self, address: str) -> str:
        if address in self._counts or len(self._counts) < ADDRESSES_MAX:
            return address
        now_s = self._clock_s()
        self._counts = {
            each: counted
            for each, counted in self._counts.items()
            if now_s - counted[0] <= WITHIN_S
        }
        return address if len(self._counts) < ADDRESSES_MAX else _OTHERS
