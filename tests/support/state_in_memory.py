"""A state table as a value: a test sets its clock, and writes as another process between a read and
the commit that follows."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping

from cellfeed.store.engines.contract.values import StateEntry


class StateInMemory:
    """A state table in memory. ``between``: done once, between a read and the next commit."""

    def __init__(self) -> None:
        self.entries: dict[str, StateEntry] = {}
        self.revision = 0
        self.at_us = 1_000_000
        self.between: Callable[[], object] | None = None

    def get(self, key: str) -> StateEntry | None:
        return self.entries.get(key)

    def list(self, prefix: str) -> builtins.list[StateEntry]:
        return [entry for key, entry in sorted(self.entries.items()) if key.startswith(prefix)]

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        if self.between is not None:
            other, self.between = self.between, None
            other()
        there = {key: entry.version for key, entry in self.entries.items()}
        if any(there.get(key) != version for key, version in (expect or {}).items()):
            return None
        self.revision += 1
        for key, value in write.items():
            self.entries.pop(key, None)
            if value is not None:
                self.entries[key] = StateEntry(key, value, self.revision)
        return self.revision

    def now_us(self) -> int:
        return self.at_us
