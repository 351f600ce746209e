"""Which of a process's calls may be under way together, so that its end is blamed on the right
cell.

A process works on several shards at a time. When it dies, every cell whose try is on record
(``recorded_attempts.py``) counts one more, the innocent ones among them. After each restart they
would begin together again, and each death would bring them nearer to being parked with the one that
kills. A **suspect** is a cell with a try on record that never ended. So it is run while no other
cell's try is on record in this process. A cell is counted for another's deed until it is a suspect
itself, no longer: with a policy of one try for such ends, it may be parked for it. Calls that are
not on record do not wait.

Nothing waits for ever: a call that does not come back (and has no time-out) has the others wait for
``PATIENCE_S``, then they run beside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 60.0
"""How long a call waits for others to come back before it is begun beside them."""

_LOOK_EVERY_S: Final = 0.1
"""How soon a call that waits is given up when its shard is asked to stop."""


class Quarantine:
    """Of one process. Any number of threads may use it."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._on_record = 0
        self._suspects = 0

    @contextmanager
    def on_record(self, suspect: bool, stop: threading.Event) -> Iterator[bool]:
        """Around a call whose try is on record. False when it is time to stop, before the call's
        turn came."""
        if not self._enter(suspect, stop):
            yield False
            return
        try:
            yield True
        finally:
            with self._changed:
                self._on_record -= 1
                self._suspects -= suspect
                self._changed.notify_all()

    def _enter(self, suspect: bool, stop: threading.Event) -> bool:
        patient_until_s = time.monotonic() + self._patience_s
        with self._changed:
            while (
                self._on_record if suspect else self._suspects
            ) and time.monotonic() < patient_until_s:
                if stop.is_set():
                    return False
                self._changed.wait(min(_LOOK_EVERY_S, self._patience_s))
            self._on_record += 1
            self._suspects += suspect
        return True
