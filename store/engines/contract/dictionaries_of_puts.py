"""The dictionaries that puts take (C3), read again every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from cellfeed.store.cells.dictionary import name_of
from cellfeed.store.cells.known_dictionaries import KnownDictionary, know, known_or_none
from cellfeed.store.engines.contract.dictionaries import DictionaryTable, Turn
from cellfeed.store.errors import CellfeedError, DictionaryLost, Unavailable

_log = logging.getLogger("cellfeed.dictionaries")

REFRESH_S: Final = 5.0
"""Longest time for which puts use dictionaries that they have read, in seconds: a small table is
read that often, and another process's dictionary taken this soon. A process takes its own at
once."""


class _Read(NamedTuple):
    """The dictionaries in use, as read under an epoch, and when."""

    epoch: int | None
    at_s: float
    in_use: Mapping[str, KnownDictionary]


class DictionariesOfPuts:
    """The dictionaries that puts to one storage take (C3). Any number of threads."""

    def __init__(
        self, table: DictionaryTable, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._last: _Read | None = None

    def under(self, epoch: int | None) -> Mapping[str, KnownDictionary]:
        """By column name the dictionaries for a put under this leader epoch (None: a storage that
        has none). Raises Unavailable, as the put would: nothing is written then."""
        last = self._last
        if last is None or not self._is_fresh(last, epoch):
            with self._lock:
                last = self._last
                if last is None or not self._is_fresh(last, epoch):
                    last = self._last = _Read(epoch, self._clock_s(), self._read())
        return last.in_use

    def forget(self) -> None:
        """Makes the next put read the dictionaries in use: one was retired, or this process has put
        one to use."""
        with self._lock:
            self._last = None

    def _is_fresh(self, last: _Read, epoch: int | None) -> bool:
        return epoch == last.epoch and self._clock_s() - last.at_s < REFRESH_S

    def _read(self) -> Mapping[str, KnownDictionary]:
        try:
            return {name: self._ready(turn) for name, turn in self._table.current().items()}
        except Unavailable:
            raise
        except CellfeedError as error:
            _log.warning("dictionaries in use cannot be read, bodies are stored without: %s", error)
            return {}

    def _ready(self, turn: Turn) -> KnownDictionary:
        if (known := known_or_none(turn.dictionary_id)) is not None:
            return known
        found = self._table.find(turn.dictionary_id)
        if found is None:
            raise DictionaryLost(
                f"dictionary {name_of(turn.dictionary_id)} of column {turn.column_name!r} is"
                " missing or damaged"
            )
        return know(found)
