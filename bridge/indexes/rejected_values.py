"""Counts values that are not of their field's type, and keeps the last one: entries
``index-unfit/<group>/<worker>`` of the state table.

A cell that is run again counts again, and a kill loses the counts of the last ``_SAVE_EVERY_S``:
the number is a hint that definition and bodies do not agree.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import Unavailable
from cellfeed.store.indexes.version import RejectedValue

_log = logging.getLogger("cellfeed.indexes")
_PREFIX: Final = "index-unfit"
_SAVE_EVERY_S: Final = 1.0


class RejectedValues(msgspec.Struct, frozen=True):
    """``last``: the row key, column and field of the last such value."""

    count: int
    last: str


_decoder: Final = msgspec.json.Decoder(RejectedValues)


class RejectedValueCounter:
    """Of one worker. Any number of threads."""

    def __init__(self, state: StateTable, group: str, worker: str) -> None:
        self._state = state
        self._key = f"{_PREFIX}/{group}/{worker}"
        self._lock = threading.Lock()
        entry = state.get(self._key)
        self._now = _decoder.decode(entry.value) if entry is not None else RejectedValues(0, "")
        self._saved = self._now
        self._saved_at_s = 0.0

    def count(self, values: Sequence[RejectedValue]) -> None:
        """Counts them; saves the count from time to time."""
        last = values[-1]
        text = (
            f"row {UUID(bytes=last.row_key)}: field {last.field} of column {last.column_name} is no"
            f" {last.type}"
        )
        with self._lock:
            if not self._now.count:
                _log.warning("%s: %s; it counts as missing", self._key, text)
            self._now = RejectedValues(self._now.count + len(values), text)
        if time.monotonic() - self._saved_at_s > _SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Saves the count, where it changed since the last time."""
        with self._lock:
            now, self._saved_at_s = self._now, time.monotonic()
        if now != self._saved:
            with suppress(Unavailable):
                self._state.commit({self._key: msgspec.json.encode(now)})
                self._saved = now


def rejected_values(state: StateTable, group: str) -> RejectedValues:
    """Of all workers of a group together."""
    found = [_decoder.decode(entry.value) for entry in state.list(f"{_PREFIX}/{group}/")]
    return RejectedValues(
        sum(each.count for each in found),
        next((each.last for each in reversed(found) if each.count), ""),
    )


def forget_rejected_values(state: StateTable, group: str) -> None:
    """When the version is dropped."""
    state.commit({entry.key: None for entry in state.list(f"{_PREFIX}/{group}/")})
