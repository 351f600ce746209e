"""The calls that follow each save of a group's offsets."""

from __future__ import annotations

from collections.abc import Callable

SavedCall = Callable[[str], object]
"""Gets the group's name. It waits for nothing and raises nothing."""


class SavedCalls:
    """Of one coordinator. Any number of threads."""

    def __init__(self) -> None:
        self._calls: tuple[SavedCall, ...] = ()

    def add(self, call: SavedCall) -> None:
        """Adds a call; one that is there already stays one."""
        if call not in self._calls:
            self._calls = (*self._calls, call)

    def saved(self, group: str) -> None:
        for call in self._calls:
            call(group)
