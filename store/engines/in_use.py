"""Calls that use something, and its end, which waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cellfeed.store.errors import StorageUnavailable


class InUse:
    """Counts the calls under way. For any thread."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._calls = 0
        self._closed = False

    @contextmanager
    def call(self, closed: str) -> Iterator[None]:
        """Around one call. Raises StorageUnavailable, with the text, once it is closed."""
        with self._state:
            if self._closed:
                raise StorageUnavailable(closed)
            self._calls += 1
        try:
            yield
        finally:
            with self._state:
                self._calls -= 1
                self._state.notify_all()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Refuses later calls, and begins the block once those under way have ended. Another
        closing waits for the block."""
        with self._state:
            self._closed = True
            self._state.wait_for(lambda: self._calls == 0)
            yield
