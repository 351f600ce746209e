"""One call over several workers: other workers first, then again with growing random pauses, until
an answer or the deadline.

The worst attempt decides what is known at the end. An attempt whose request may have reached a
worker leaves a put ``unknown``. A later attempt that was surely refused does not take that back:
only an answer about the cell itself does (stored, exists, conflict).
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from cellfeed.store.errors import (
    CellConflict,
    CellfeedError,
    OtherHistory,
    OutcomeUnknown,
    StorageUnavailable,
    WrongAnswer,
    error_from_code,
)
from cellfeed.store.http.calls.transport import Answer, AttemptFailed, Worker
from cellfeed.store.http.messages import ErrorMessage

_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_DOUBLINGS_MAX: Final = 10
"""The pause is at its longest before; two to the power of a thousand is no float."""

WAIT_SAID_S: Final = 1.0
"""After so long a person asks what is going on; most calls take milliseconds."""

_SERVED: Final = "history"
_DISTRUST_S: Final = 2.0
"""How long a worker that could not answer is tried last: about what a restart takes."""

_decode_error: Final = msgspec.json.Decoder(ErrorMessage).decode


class Attempts:
    """Chooses workers for the calls of one client, all of which serve one history: ``history``, or
    that of the first answer.

    ``on_wait``: called in a thread of its own, once for each call that has no answer after
    ``WAIT_SAID_S``, with the reason. A call costs a thread then.
    """

    def __init__(
        self,
        urls: Sequence[str],
        timeout_s: float,
        sleep: Callable[[float], None] = time.sleep,
        history: str | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._on_wait = on_wait
        self._workers = [Worker(url) for url in urls]
        # A dictionary, because setdefault is atomic: of two threads the first decides.
        self._served: dict[str, str] = {} if history is None else {_SERVED: history}
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._turns = itertools.count(random.randrange(len(self._workers)))

    @property
    def history(self) -> str | None:
        """The history that the workers serve; None before the first answer."""
        return self._served.get(_SERVED)

    def deadline(self) -> float:
        """The deadline (monotonic) of a call that begins now."""
        return time.monotonic() + self._timeout_s

    def call(
        self,
        method: str,
        target: str,
        content: bytes,
        media_type: str,
        *,
        deadline: float,
        writes: bool,
        opened: list[Exception] | None = None,
    ) -> bytes:
        """The content of a 200. Raises the error that a worker answered; StorageUnavailable,
        WrongAnswer, or for writes OutcomeUnknown, at the deadline. ``opened`` gets what left open
        whether an earlier attempt was carried out."""
        names = ", ".join(worker.name for worker in self._workers)
        reason = [f"no answer yet from {names}"]
        opened = [] if opened is None else opened
        if self._on_wait is None:
            return self._call(method, target, content, media_type, deadline, writes, reason, opened)
        say, left_s = self._on_wait, deadline - time.monotonic()
        timer = threading.Timer(
            WAIT_SAID_S, lambda: say(f"{reason[0]}; it is tried for {left_s:.0f} s in all")
        )
        timer.daemon = True
        timer.start()
        try:
            return self._call(method, target, content, media_type, deadline, writes, reason, opened)
        finally:
            timer.cancel()

    def _call(
        self,
        method: str,
        target: str,
        content: bytes,
        media_type: str,
        deadline: float,
        writes: bool,
        reason: list[str],
        opened: list[Exception],
    ) -> bytes:
        last: Exception | None = None
        others: set[str] = set()
        for worker in self._in_turn(deadline):
            try:
                answer = worker.request(method, target, content, media_type, deadline, self.history)
            except AttemptFailed as failed:
                last = failed
                reason[0] = str(failed)
                if failed.refused:
                    worker.trusted_again_at = time.monotonic() + _DISTRUST_S
                if not failed.definite:
                    opened.append(failed)
                continue
            if answer.status == 200:
                self._compare(answer, worker.name, writes)
                return answer.content
            error = last = error_of(answer, worker.name)
            reason[0] = f"{worker.name}: {error}"
            if isinstance(error, OtherHistory):
                # A neighbour may have taken the place of one worker; the others are as before.
                others.add(worker.name)
                worker.trusted_again_at = time.monotonic() + _DISTRUST_S
                if len(others) < len(self._workers):
                    continue
            if not error.definite:
                opened.append(error)
            if not error.retriable:
                if writes and opened and not isinstance(error, CellConflict):
                    break
                raise error
            if answer.status == 503:
                worker.trusted_again_at = time.monotonic() + _DISTRUST_S
        if writes and opened:
            raise OutcomeUnknown(
                f"not known within {self._timeout_s} s whether it was done: {opened[-1]}; ask for"
                " the same again to learn"
            ) from last
        what = "nothing written" if writes else "not read"
        if isinstance(last, CellfeedError):
            raise last
        if isinstance(last, AttemptFailed) and last.wrong_answer:
            raise WrongAnswer(f"{what} within {self._timeout_s} s: {last}") from last
        raise StorageUnavailable(f"{what} within {self._timeout_s} s: {last}") from last

    def pause(self, round_no: int, deadline: float) -> bool:
        """Waits before another round (full jitter, as in Amazon's "Exponential Backoff And Jitter",
        2015); False when no time is left."""
        pause = random.uniform(
            0, min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** min(round_no, _DOUBLINGS_MAX))
        )
        left = deadline - time.monotonic()
        if left > 0:
            self._sleep(min(pause, left))
        return time.monotonic() < deadline

    def _compare(self, answer: Answer, worker: str, writes: bool) -> None:
        """Raises OtherHistory for an answer from another store, or OutcomeUnknown when a put went
        there before the client knew better."""
        if answer.history is None:
            return  # a worker of an earlier version
        known = self._served.setdefault(_SERVED, answer.history)
        if known != answer.history:
            raise (OutcomeUnknown if writes else OtherHistory)(
                f"{worker} serves history {answer.history}, and this client works with {known}: its"
                " workers do not serve one store"
            )

    def close(self) -> None:
        """Closes idle connections."""
        for worker in self._workers:
            worker.close()

    def _in_turn(self, deadline: float) -> Iterator[Worker]:
        """Workers to try, one after another; those that failed lately come last. A pause after each
        round; ends at the deadline."""
        round_no = 0
        while True:
            turn = next(self._turns) % len(self._workers)
            now = time.monotonic()
            turned = self._workers[turn:] + self._workers[:turn]
            for worker in sorted(turned, key=lambda worker: worker.trusted_again_at > now):
                yield worker
                if time.monotonic() >= deadline:
                    return
            if not self.pause(round_no, deadline):
                return
            round_no += 1


def error_of(answer: Answer, worker: str) -> CellfeedError:
    """The error of an answer that is not a 200. What no worker of ours wrote (a proxy's page)
    leaves the outcome open from 500 on."""
    try:
        message = _decode_error(answer.content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = f"{worker} answered {answer.status}: {answer.content[:200].decode('latin-1')!a}"
        return OutcomeUnknown(text) if answer.status >= 500 else CellfeedError(text)
    return error_from_code(message.error, message.message)
