"""The steps of a call: the waits between its computations.

A call is a generator. It yields each request that has to be sent, and each pause; their outcome is
sent back into it, and the result of the call is its return value. So one code serves threads
(:mod:`cellfeed.store.http.calls.blocking`) and event loops
(:mod:`cellfeed.store.http.calls.asynchronous`), which alone do I/O. psycopg 3 and httpx divide
their work alike.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

from cellfeed.store.http.calls.wire import Answer, Request
from cellfeed.store.http.calls.workers import Worker

T = TypeVar("T")

WAIT_SAID_S: Final = 1.0
"""After so long a person wants to know the reason; most calls take milliseconds."""


class Send(NamedTuple):
    """Send ``request`` to ``worker`` and read its answer, until ``deadline`` (monotonic).
    AttemptFailed is thrown into the call when none comes. ``why``: the reason that the call has no
    answer yet, for a waiting person. ``streams``: an answer 200 is a stream
    (:attr:`cellfeed.store.http.calls.wire.Answer.stream`); the deadline is that of its head."""

    worker: Worker
    request: Request
    deadline: float
    why: str
    streams: bool = False


class Pause(NamedTuple):
    """Wait for ``seconds``."""

    seconds: float
    why: str


Steps: TypeAlias = Generator[Send | Pause, Answer | None, T]


def sent(step: Send) -> Steps[Answer]:
    """The answer to one request."""
    return cast("Answer", (yield step))
