"""Calls that threads make at the same time, done together: while one lot is being done the next one
gathers, as puts do in :mod:`cellfeed.store.commit.group_commit`.

For writes that cost the same for one item or many, and that may be repeated. The first thread does
the work of all that wait. Should that fail, each thread does its own item and gets its own error:
nobody fails for another one's sake. Only an unknown outcome is raised to all, for it is each one's
own. Nothing is kept between two calls, so this has no crash point: a call returns when any of the
threads has written its item.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from cellfeed.store.errors import OutcomeUnknown

T = TypeVar("T")


class _Lot(Generic[T]):
    def __init__(self) -> None:
        self.items: list[T] = []
        self.error: BaseException | None = None
        self.done = threading.Event()


class Gathered(Generic[T]):
    """See the module. ``together`` does several items, all or nothing. Any number of threads."""

    def __init__(self, together: Callable[[Sequence[T]], None]) -> None:
        self._together = together
        self._lock = threading.Lock()
        self._busy = threading.Lock()
        self._next: _Lot[T] | None = None

    def call(self, item: T) -> None:
        """Returns when the item is done; raises the error that kept it from being done."""
        with self._lock:
            leads = self._next is None
            lot = self._next = self._next or _Lot()
            lot.items.append(item)
        if leads:
            self._lead(lot)
        else:
            lot.done.wait()
        if lot.error is None:
            return
        if len(lot.items) == 1 or isinstance(lot.error, OutcomeUnknown):
            raise lot.error
        self._together([item])

    def _lead(self, lot: _Lot[T]) -> None:
        with self._busy:
            with self._lock:
                self._next = None  # from here on nobody joins
            try:
                self._together(lot.items)
            except BaseException as error:
                lot.error = error
                if not isinstance(error, Exception):
                    raise
            finally:
                lot.done.set()
