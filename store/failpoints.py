"""Named places in the code where a test may make the process die, fail or wait.

A failpoint costs two looks at empty dictionaries when none is set. Tests set them in process with
:func:`set_failpoint`, or for a child process through the environment:
``CELLFEED_FAILPOINTS="sqlite.put.before_commit=kill@3;trigger.after_run=raise"``. The part after
``@`` is the number of the pass at which it acts (1, the first, when left out); earlier and later
passes do nothing.

Actions: ``kill`` (the process ends as by ``kill -9``), ``raise`` (:class:`FailpointReached`),
``sleep:SECONDS``. For other actions there is :func:`watch_failpoint`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

FAILPOINTS: Final[set[str]] = set()
"""Every failpoint of the code that has been imported: tests go through all of them, so none is
forgotten."""


class ProcessEnds(BaseException):
    """Stands for the end of the process where tests have several in one. No handler takes it for
    an error, also where every other one of a function is caught."""


class FailpointReached(ProcessEnds):
    """Raised by the ``raise`` action."""


class _Plan:
    def __init__(self, action: str, at_pass: int) -> None:
        self.action = action
        self.at_pass = at_pass
        self.passes = 0


_plans: dict[str, _Plan] = {}
_watchers: dict[str, Callable[[], None]] = {}
_lock = threading.Lock()


def declare(*names: str) -> None:
    """Registers the failpoints of a module; called once where the module is defined."""
    FAILPOINTS.update(names)


def set_failpoint(name: str, action: str, at_pass: int = 1) -> None:
    """Arms ``name``; ``action`` is ``kill``, ``raise`` or ``sleep:SECONDS``. Raises ValueError for
    an unknown action."""
    if action not in ("kill", "raise") and not action.startswith("sleep:"):
        raise ValueError(
            f"failpoint {name}: unknown action {action!r}; known are kill, raise and sleep:SECONDS"
        )
    with _lock:
        _plans[name] = _Plan(action, at_pass)


def watch_failpoint(name: str, watcher: Callable[[], None]) -> None:
    """Has ``watcher`` called at every pass of the failpoint, in the thread that passes; its errors
    are raised there. One watcher each, until cleared."""
    with _lock:
        _watchers[name] = watcher


def unwatch_failpoint(name: str) -> None:
    """Ends :func:`watch_failpoint`."""
    with _lock:
        _watchers.pop(name, None)


def clear_failpoints() -> None:
    """Disarms all, and forgets who watches."""
    with _lock:
        _plans.clear()
        _watchers.clear()


def passes(name: str) -> int:
    """How often the armed failpoint was passed: a fault test proves by it that its fault
    happened."""
    plan = _plans.get(name)
    return plan.passes if plan else 0


def failpoint(name: str) -> None:
    """Marks a place. Does nothing unless a test armed or watches ``name``."""
    if not _plans and not _watchers:
        return
    if (watcher := _watchers.get(name)) is not None:
        watcher()
    plan = _plans.get(name)
    if plan is None:
        return
    with _lock:
        plan.passes += 1
        act = plan.passes == plan.at_pass
    if not act:
        return
    if plan.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif plan.action == "raise":
        raise FailpointReached(name)
    else:
        time.sleep(float(plan.action.partition(":")[2]))


def marked(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: every call passes the failpoint ``name.before`` first, and ``name.after`` when
    it returns without an error. For calls that decide between two actors: a compare-and-set, a
    claim, a fence, a change of roles. Nothing may be locked at either point."""
    before, after = f"{name}.before", f"{name}.after"
    declare(before, after)

    def decorated(call: Callable[P, T]) -> Callable[P, T]:
        @wraps(call)
        def between(*args: P.args, **kwargs: P.kwargs) -> T:
            failpoint(before)
            result = call(*args, **kwargs)
            failpoint(after)
            return result

        return between

    return decorated


def _from_environment(text: str) -> None:
    for part in filter(None, text.split(";")):
        name, _, rest = part.partition("=")
        action, _, at_pass = rest.partition("@")
        set_failpoint(name.strip(), action.strip(), int(at_pass or 1))


_from_environment(os.environ.get("CELLFEED_FAILPOINTS", ""))
