"""Sessions of a ZooKeeper in memory: each ends once nobody has heard of its process for its whole
time-out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class _Session:
    """``silent_since_s``: from when on its process has not been heard of; None while it lives."""

    timeout_s: float
    silent_since_s: float | None = None


@dataclass
class TreeSessions:
    """Numbers and states of sessions; no number is given out twice. Times are monotonic seconds."""

    _last: int = 0
    _live: dict[int, _Session] = field(default_factory=dict)

    def begin(self, timeout_s: float) -> int:
        self._last += 1
        self._live[self._last] = _Session(timeout_s)
        return self._last

    def renewed(self, number: int, timeout_s: float) -> int:
        """The session, or a new one where it has expired: as a client library does by itself."""
        return number if number in self._live else self.begin(timeout_s)

    def silence(self, number: int, since_s: float | None) -> None:
        """The session's process is not heard of from then on, or is heard of again (None)."""
        if number in self._live:
            self._live[number] = replace(self._live[number], silent_since_s=since_s)

    def restart(self) -> None:
        """Each session has the whole of its time-out again."""
        now_s = time.monotonic()
        for number, each in self._live.items():
            if each.silent_since_s is not None:
                self._live[number] = replace(each, silent_since_s=now_s)

    def lapsed(self) -> Iterator[int]:
        """Sessions whose time-out is over."""
        now_s = time.monotonic()
        for number, each in list(self._live.items()):
            if each.silent_since_s is not None and now_s - each.silent_since_s > each.timeout_s:
                yield number

    def end(self, number: int) -> bool:
        """Whether the session lived."""
        return self._live.pop(number, None) is not None

    def end_all(self) -> None:
        self._live.clear()

    def copy(self) -> TreeSessions:
        return TreeSessions(self._last, dict(self._live))
