"""Signals that end a command which starts processes: it leaves none behind.

A signal raises SystemExit wherever the command is just then, so that it ends the processes it has
started. Two places are not good for that. While a process is being started nobody has a record of
it yet, so it would stay behind: there the signal waits (:func:`uninterrupted`). And a library may
swallow an exception raised inside its destructor or callback: so code that waits for something asks
as well (:func:`raise_if_asked`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class _Asked:
    """Of this process; signals are handled in its main thread. ``number``: the signal that has
    come. ``is_deferred``: whether it is to wait."""

    number: int | None = None
    is_deferred = False


def end_at_signals() -> list[signal.Signals]:
    """From now on SIGTERM, Ctrl-C and a closed terminal end this command as SystemExit, so that it
    ends the processes it has started. Returns the signals; one that is ignored stays so
    (``nohup``)."""
    signals = [
        number
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]

    def end(number: int, _frame: object) -> None:
        # Once: a second signal must not cut off the ending of the started processes.
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        _Asked.number = number
        if not _Asked.is_deferred:
            raise_if_asked()

    for number in signals:
        signal.signal(number, end)
    return signals


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """:func:`end_at_signals` for a part of a command; behind it they are answered as before."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    end_at_signals()
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)


def raise_if_asked() -> None:
    """Raises SystemExit when one of the signals has come."""
    if _Asked.number is not None:
        raise SystemExit(128 + _Asked.number)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal that comes meanwhile is answered at the end of it. For moments only, and not one
    inside the other."""
    _Asked.is_deferred = True
    try:
        yield
    finally:
        _Asked.is_deferred = False
    raise_if_asked()
