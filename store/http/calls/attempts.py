"""One call over several workers: other workers first, then again with growing random pauses, until
an answer or the deadline.

The worst attempt decides the outcome at the end. An attempt whose request may have reached a worker
leaves a put ``unknown``. A later attempt that was surely refused does not take that back: only an
answer about the cell itself does (stored, exists, conflict).
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Sequence
from typing import Final, NoReturn

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
from cellfeed.store.http.calls.access import Access
from cellfeed.store.http.calls.steps import Pause, Send, Steps, sent
from cellfeed.store.http.calls.wire import Answer, AttemptFailed, Request
from cellfeed.store.http.calls.workers import Worker
from cellfeed.store.http.messages import ErrorMessage

_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_DOUBLINGS_MAX: Final = 10
"""The pause is at its longest before; two to the power of a thousand is no float."""

_SERVED: Final = "history"
_DISTRUST_S: Final = 2.0
"""How long a worker that could not answer is tried last: about as long as a restart takes."""

_decode_error: Final = msgspec.json.Decoder(ErrorMessage).decode


class Attempts:
    """Chooses workers for the calls of one client, all of which serve one history: ``history``, or
    that of the first answer. Any number of threads and tasks may use it."""

    def __init__(
        self,
        urls: Sequence[str],
        timeout_s: float,
        history: str | None = None,
        access: Access | None = None,
    ) -> None:
        self._workers = [Worker(url, access) for url in urls]
        # A dictionary, because setdefault is atomic: of two threads the first decides.
        self._served: dict[str, str] = {} if history is None else {_SERVED: history}
        self._timeout_s = timeout_s
        self._turns = itertools.count(random.randrange(len(self._workers)))
        self._tried_for = f"; it is tried for {timeout_s:.0f} s in all"
        names = ", ".join(worker.name for worker in self._workers)
        self._no_answer_yet = f"no answer yet from {names}{self._tried_for}"

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
    ) -> Steps[bytes]:
        """The content of the answer of :meth:`answer`."""
        answer = yield from self.answer(
            method, target, content, media_type, deadline=deadline, writes=writes, opened=opened
        )
        return answer.content

    def answer(
        self,
        method: str,
        target: str,
        content: bytes,
        media_type: str,
        *,
        deadline: float,
        writes: bool,
        opened: list[Exception] | None = None,
        streams: bool = False,
        attempt_s: float = math.inf,
    ) -> Steps[Answer]:
        """The answer 200, as a stream where that is asked for. Raises the error that a worker
        answered; StorageUnavailable, WrongAnswer, or for writes OutcomeUnknown, at the deadline.
        ``opened`` gets the errors that leave open whether an earlier attempt was carried out.
        ``attempt_s``: the time of each attempt, in seconds."""
        opened = [] if opened is None else opened
        why = self._no_answer_yet
        last: Exception | None = None
        others: set[str] = set()
        round_no = 0
        turn = self._turn()
        while turn:
            worker = turn.pop(0)
            request = Request(method, target, content, media_type, self.history)
            ends_at = min(deadline, time.monotonic() + attempt_s)
            try:
                answer = yield from sent(Send(worker, request, ends_at, why, streams))
            except AttemptFailed as failed:
                last = failed
                why = f"{failed}{self._tried_for}"
                if failed.refused:
                    worker.trusted_again_at = time.monotonic() + _DISTRUST_S
                if not failed.definite:
                    opened.append(failed)
            else:
                if answer.status == 200:
                    try:
                        self._compare(answer, worker.name, writes)
                    except CellfeedError:
                        if answer.stream is not None:
                            answer.stream.close()
                        raise
                    return answer
                error = last = error_of(answer, worker.name)
                why = f"{worker.name}: {error}{self._tried_for}"
                is_elsewhere = False
                if isinstance(error, OtherHistory):
                    # A neighbour may have taken the place of one worker; the others are as before.
                    others.add(worker.name)
                    worker.trusted_again_at = time.monotonic() + _DISTRUST_S
                    is_elsewhere = len(others) < len(self._workers)
                if not is_elsewhere:
                    if not error.definite:
                        opened.append(error)
                    if not error.retriable:
                        if writes and opened and not isinstance(error, CellConflict):
                            break
                        raise error
                    if answer.status == 503:
                        worker.trusted_again_at = time.monotonic() + _DISTRUST_S
            if time.monotonic() >= deadline:
                break
            if not turn:
                if not (yield from pause(round_no, deadline, why)):
                    break
                round_no += 1
                turn = self._turn()
        self._raise_last(last, opened if writes else None)

    def _raise_last(self, last: Exception | None, opened: list[Exception] | None) -> NoReturn:
        """Raises the error that fits all attempts; ``opened``: of a write, the errors that leave it
        open."""
        if opened:
            raise OutcomeUnknown(
                f"not known within {self._timeout_s} s whether it was done: {opened[-1]}; ask for"
                " the same again to learn"
            ) from last
        what = "not read" if opened is None else "nothing written"
        if isinstance(last, CellfeedError):
            raise last
        if isinstance(last, AttemptFailed) and last.wrong_answer:
            raise WrongAnswer(f"{what} within {self._timeout_s} s: {last}") from last
        raise StorageUnavailable(f"{what} within {self._timeout_s} s: {last}") from last

    def _turn(self) -> list[Worker]:
        """Every worker once; those that failed lately come last."""
        first = next(self._turns) % len(self._workers)
        if len(self._workers) == 1:
            return self._workers[:]
        now = time.monotonic()
        turned = self._workers[first:] + self._workers[:first]
        return sorted(turned, key=lambda worker: worker.trusted_again_at > now)

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


def pause(round_no: int, deadline: float, why: str) -> Steps[bool]:
    """Waits before another round (full jitter, as in Amazon's "Exponential Backoff And Jitter",
    2015); False when no time is left."""
    seconds = random.uniform(
        0, min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** min(round_no, _DOUBLINGS_MAX))
    )
    left = deadline - time.monotonic()
    if left > 0:
        yield Pause(min(seconds, left), why)
    return time.monotonic() < deadline


def error_of(answer: Answer, worker: str) -> CellfeedError:
    """The error of an answer that is not a 200. An answer that no worker of ours wrote (a proxy's
    page) leaves the outcome open from 500 on."""
    try:
        message = _decode_error(answer.content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = f"{worker} answered {answer.status}: {answer.content[:200].decode('latin-1')!a}"
        return OutcomeUnknown(text) if answer.status >= 500 else CellfeedError(text)
    return error_from_code(message.error, message.message)
