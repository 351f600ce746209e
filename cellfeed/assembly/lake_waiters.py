"""A lake's loader hears of the callers that wait for it, and wakes them.

The loader is a consumer and needs no store. Watches come to addresses in the store's state. So a
thread beside the loader has a datastore open. While the store is away the loader loads on, and
waiters look once a second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from cellfeed.bridge.outlets.lakes import watched_name
from cellfeed.store.background import SupervisedThread
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from cellfeed.store.waits.awaited import Awaited
from cellfeed.store.wakeups.datagrams import Listener

_log: Final = logging.getLogger("cellfeed.lake")

AGAIN_S: Final = 5.0
"""Pause after the store did not answer, seconds."""

_TURN_S: Final = 0.5


class LakeWaiters:
    """:class:`cellfeed.consumers.lake.waiters.Waiters` of one loader. ``group``: of its lake;
    ``name``: unique among the followers alive; ``open_store`` gives a datastore of its own."""

    def __init__(self, group: str, name: str, open_store: Callable[[], Datastore]) -> None:
        self._watched = watched_name(group)
        self._name = f"lake-{name}"
        self._open_store = open_store
        self._awaited: Awaited | None = None
        self._closing = threading.Event()
        self._trouble = ""
        self._thread = SupervisedThread(f"waiters-{name}"[:60], self._run)
        self._thread.start()

    def is_awaited(self) -> bool:
        awaited = self._awaited
        return awaited is not None and awaited.is_awaited(self._watched)

    def wake(self) -> None:
        if (awaited := self._awaited) is not None:
            awaited.wake(self._watched)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._listen()
            except CellfeedError as error:
                if (trouble := str(error)) != self._trouble:
                    _log.warning("waiters for the lake poll just now: %s", trouble)
                self._trouble = trouble
                self._closing.wait(AGAIN_S)

    def _listen(self) -> None:
        with self._open_store() as store:
            listener = Listener(store.state, self._name, store.awaited)
            self._awaited = store.awaited
            try:
                while not self._closing.is_set():
                    listener.wait(_TURN_S)
                    self._trouble = ""
            finally:
                self._awaited = None
                listener.close()
