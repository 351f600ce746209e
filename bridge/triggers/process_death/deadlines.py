"""Time-outs of trigger functions.

A thread of Python cannot be ended from outside. A function that hangs would keep its thread and its
shard for as long as its process lives. So the honest end of a time-out is the end of the process:

1. The watching thread sees that a call is overdue. From then on the call counts as timed out, also
   when it returns late.
2. The try is put on record in the datastore (``recorded_attempts.py``), with the place in the
   function's code where it hung. While the datastore is away it waits with the next step: a try
   that is not on record would be tried for ever.
3. The worker stops its other shards, each after the call that is under way, for at most
   ``TIME_OUT_DRAIN_S``. It saves how far they have come and gives them back. It does not give back
   the shard with the overdue call: the function may still be at it.
4. The process ends at once (``os._exit``) with the code ``EXIT_TIMED_OUT``. Its supervisor
   starts it again; ``cellfeed up`` does. The shard is taken over when the lease has run out, or
   sooner by the restarted process, under its name.
5. A cell whose record shows that its tries are used up (the policy for
   :class:`~cellfeed.bridge.triggers.retry.TimedOut`) is parked there without being run.

Crash points: dying between 1 and 2 is like any death of a process (the shard's next owner counts
tries); after 2 the record stands. A function in native code that holds the interpreter's lock stops
the watching thread too; then the lease runs out, and the shards go to another worker.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cellfeed.bridge.triggers.coroutines import stack_under_way
from cellfeed.bridge.triggers.process_death.quarantine import Quarantine
from cellfeed.store.background import SupervisedThread
from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare("time_out.before_noted", "time_out.after_noted")

_log = logging.getLogger("cellfeed.triggers")

EXIT_TIMED_OUT: Final = 75
"""How a process ends whose function has timed out: ``EX_TEMPFAIL`` of sysexits.h, «try
again»."""

TIME_OUT_DRAIN_S: Final = 5.0
"""How long other shards may work on the call that is under way before the process ends."""

_LOOKS_IN_A_TIME_OUT: Final = 10
_LOOK_EVERY_MIN_S: Final = 0.01
_LOOK_EVERY_MAX_S: Final = 0.5
"""A call is seen to be overdue at the latest a tenth of its time-out, or half a second, after its
time."""

_NOTE_AGAIN_S: Final = 0.5
"""How soon it is tried again to put a time-out on record when the datastore is away."""


@dataclass(eq=False)
class Call:
    """A call of a trigger function that is under way. ``note(error)`` puts its time-out on
    record."""

    what: str
    timeout_s: float
    note: Callable[[str], None]
    thread_id: int = field(default_factory=threading.get_ident)
    overdue_at_s: float = 0.0
    noted: threading.Event = field(default_factory=threading.Event)


class Deadlines:
    """The calls under way in one process that have a time-out, and the thread that watches them.
    ``quarantine`` is for those with their tries on record."""

    def __init__(self, *, exit_process: Callable[[int], None] = os._exit) -> None:
        self.quarantine = Quarantine()
        self._exit = exit_process
        self._calls: dict[int, Call] = {}
        self._closed = threading.Event()
        self._look_every_s = _LOOK_EVERY_MAX_S
        self._thread: SupervisedThread | None = None
        self._lock = threading.Lock()
        self.overdue_because: str | None = None
        """Why the process has to end: set when that is on record."""

    def begin(self, call: Call) -> None:
        """A call begins, in the calling thread."""
        if self._thread is None or call.timeout_s < self._look_every_s * _LOOKS_IN_A_TIME_OUT:
            self._watch(call.timeout_s)
        call.overdue_at_s = time.monotonic() + call.timeout_s
        self._calls[call.thread_id] = call

    def end(self, call: Call) -> bool:
        """The call has come back. False when it is counted as timed out; only returns then when
        that is on record."""
        # One of both takes it out, this thread or the watching one: so a call has come back or
        # timed out, never both.
        if self._calls.pop(call.thread_id, None) is not None:
            return True
        call.noted.wait()
        return False

    def end_process(self) -> None:
        """Ends the process at once. To be called when it has drained."""
        _log.error(
            "the process ends with code %d and is to be started again: %s",
            EXIT_TIMED_OUT,
            self.overdue_because,
        )
        for handler in logging.getLogger().handlers:
            handler.flush()
        self._exit(EXIT_TIMED_OUT)

    def close(self) -> None:
        """Ends the watching."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, timeout_s: float) -> None:
        with self._lock:
            self._look_every_s = min(
                self._look_every_s, max(_LOOK_EVERY_MIN_S, timeout_s / _LOOKS_IN_A_TIME_OUT)
            )
            if self._thread is None:
                self._thread = SupervisedThread("trigger-deadlines", self._look)
                self._thread.start()

    def _look(self) -> None:
        while not self._closed.wait(self._look_every_s):
            now_s = time.monotonic()
            overdue = [
                (key, call)
                for key, call in self._calls.copy().items()
                if call.overdue_at_s <= now_s
            ]
            taken = [
                call
                for key, call in overdue
                if self._calls.get(key) is call and self._calls.pop(key, None) is call
            ]
            for call in taken:
                try:
                    self._note(call)
                except Exception:
                    _log.exception(
                        "%s ran too long, which a defect keeps from being put on record", call.what
                    )
                finally:
                    # the process has to end, recorded or not: the next owner counts for itself
                    call.noted.set()
                    self.overdue_because = f"{call.what} ran longer than {call.timeout_s:g} s"

    def _note(self, call: Call) -> None:
        error = (
            f"{_stack(call.thread_id)}TimedOut: {call.what} ran longer than {call.timeout_s:g} s"
        )
        failpoint("time_out.before_noted")
        while not self._closed.is_set():
            try:
                call.note(error)
            except Unavailable as away:
                _log.warning(
                    "%s ran too long, which cannot be put on record just now: %s", call.what, away
                )
                self._closed.wait(_NOTE_AGAIN_S)
            except CellfeedError as refused:
                _log.warning(
                    "%s ran too long, which is not put on record: %s", call.what, refused
                )  # another worker has the shard, and counts itself
                break
            else:
                break
        failpoint("time_out.after_noted")


def _stack(thread_id: int) -> str:
    if coroutine := stack_under_way(thread_id):
        return f"It was here:\n{coroutine}"
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001 (the documented way to another thread's stack)
    return (
        f"It was here:\n{''.join(traceback.format_stack(frame)[-8:])}" if frame is not None else ""
    )
