"""A state table with a call before each of its own: it may wait, or refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry


class CheckedState:
    """Calls ``before`` ahead of each call of ``state``. An error that it raises is the call's."""

    def __init__(self, state: StateTable, before: Callable[[], None]) -> None:
        self._state = state
        self._before = before

    def get(self, key: str) -> StateEntry | None:
        self._before()
        return self._state.get(key)

    def list(self, prefix: str) -> list[StateEntry]:
        self._before()
        return self._state.list(prefix)

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        self._before()
        return self._state.commit(write, expect)

    def now_us(self) -> int:
        self._before()
        return self._state.now_us()
