"""Callers that wait for a lake's commits, as its loader sees them."""

from __future__ import annotations

from typing import Final, Protocol

AWAITED_AGE_S: Final = 1.0
"""How long a row waits for its commit at most while somebody waits for the lake, seconds: a commit
of a second's rows is a small file, and there are few of them."""


class Waiters(Protocol):
    """Used by the loader's thread."""

    def is_awaited(self) -> bool: ...

    def wake(self) -> None:
        """After each commit. Raises nothing, and waits for nothing."""
        ...


class Nobody:
    """Nobody waits."""

    def is_awaited(self) -> bool:
        return False

    def wake(self) -> None:
        return
