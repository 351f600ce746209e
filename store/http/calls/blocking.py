"""Calls in the thread of their caller: sockets that wait.

A request has one absolute deadline. Before each wait the socket is given the time that is left, so
a peer that sends a byte now and then cannot stretch it. (A standard HTTP client starts its time-out
again at each byte.) After a ``fork()`` the child makes connections of its own: on a shared one each
side would read the other's answers.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from cellfeed.store import forks
from cellfeed.store.errors import WrongAnswer
from cellfeed.store.http.calls.blocking_stream import (
    RECV_BYTES,
    connected,
    left_s,
    stream_answer,
)
from cellfeed.store.http.calls.steps import WAIT_SAID_S, Pause, Send, Steps
from cellfeed.store.http.calls.wire import (
    CONNECTIONS_KEPT_MAX,
    IDLE_S_MAX,
    Answer,
    AnswerReader,
    AttemptFailed,
    ended_early,
)
from cellfeed.store.http.calls.workers import Worker

T = TypeVar("T")


class Blocking:
    """Runs the steps of calls. Any number of threads may use it, without a lock: a child may be
    forked while one is held.

    ``on_wait``: called in a thread of its own, once for each call that has no answer after
    ``WAIT_SAID_S``, with the reason. A call costs a thread then.
    """

    def __init__(
        self,
        on_wait: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._on_wait = on_wait
        self._is_closed = False
        self._sleep = sleep
        self._own: tuple[int, dict[Worker, list[_Connection]]] = forks.generation, {}

    def run(self, steps: Steps[T]) -> T:
        """The result of a call; errors of the call pass through."""
        if self._on_wait is None:
            return self._run(steps, [])
        say, reasons = self._on_wait, [""]
        timer = threading.Timer(WAIT_SAID_S, lambda: say(reasons[0]))
        timer.daemon = True
        timer.start()
        try:
            return self._run(steps, reasons)
        finally:
            timer.cancel()

    def _run(self, steps: Steps[T], reasons: list[str]) -> T:
        try:
            step = next(steps)
            while True:
                if reasons:
                    reasons[0] = step.why
                if isinstance(step, Pause):
                    self._sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    answer = self._exchange(step)
                except AttemptFailed as failed:
                    step = steps.throw(failed)
                else:
                    step = steps.send(answer)
        except StopIteration as ended:
            return cast("T", ended.value)
        except WrongAnswer:
            self._close_idle()  # one of the connections kept is not in step with its worker
            raise

    def close(self) -> None:
        """Closes the idle connections, and from now on each that a call has used."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for idle in self._idle().values():
            while idle:
                with suppress(IndexError):  # another thread has taken the last one
                    idle.pop().close()

    def _exchange(self, step: Send) -> Answer:
        if step.streams:
            return stream_answer(step)
        worker = step.worker
        request, number = step.request.written(worker.name, worker.authorization())
        connection = self._take(worker, step.deadline)
        try:
            answer = connection.exchange(request, number, step.deadline)
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable:
            self._give_back(worker, connection)
        else:
            connection.close()
        return answer

    def _idle(self) -> dict[Worker, list[_Connection]]:
        """The idle connections of this process. Those of its parent are closed on this side alone,
        unread, which the parent and the worker do not notice."""
        generation, kept = self._own
        if generation != forks.generation:
            for idle in kept.values():
                for connection in idle:
                    connection.close()
            kept = {}
            self._own = forks.generation, kept
        return kept

    def _take(self, worker: Worker, deadline: float) -> _Connection:
        idle = self._idle().setdefault(worker, [])
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return _Connection(connected(worker, deadline), worker.name)
            if connection.is_still_open():
                return connection
            connection.close()

    def _give_back(self, worker: Worker, connection: _Connection) -> None:
        connection.idle_since = time.monotonic()
        idle = self._idle().setdefault(worker, [])
        if len(idle) < CONNECTIONS_KEPT_MAX and not self._is_closed:
            idle.append(connection)
        else:
            connection.close()


class _Connection:
    def __init__(self, connected: socket.socket, worker: str) -> None:
        self._socket = connected
        self._worker = worker
        self.is_reusable = False
        self.idle_since = 0.0

    def exchange(self, request: bytes, number: bytes, deadline: float) -> Answer:
        """Sends a request and reads the answer with its number."""
        self.is_reusable = False
        reader = AnswerReader(self._worker, number)
        is_cut_off = False
        try:
            # One deadline for the whole of it: sendall counts its time-out over all it sends.
            self._socket.settimeout(left_s(deadline, self._worker, definite=True))
            self._socket.sendall(request)
        except OSError as error:
            # The worker may have answered before it read everything (too large, closing); that
            # answer says more than the broken pipe.
            is_cut_off = True
            try:
                self._read(reader, deadline)
            except AttemptFailed:
                raise AttemptFailed(
                    f"{self._worker}: cut off while sending: {error}", definite=False
                ) from None
        else:
            self._read(reader, deadline)
        answer = reader.answer()
        self.is_reusable = reader.keeps_alive and not is_cut_off
        return answer

    def is_still_open(self) -> bool:
        """False when it was idle too long, or the worker closed it (an idle connection has nothing
        to read)."""
        if time.monotonic() - self.idle_since > IDLE_S_MAX:
            return False
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._socket.close()

    def _read(self, reader: AnswerReader, deadline: float) -> None:
        while not reader.is_complete:
            self._socket.settimeout(left_s(deadline, self._worker, definite=False))
            try:
                piece = self._socket.recv(RECV_BYTES)
            except OSError as error:
                raise AttemptFailed(f"{self._worker}: no answer: {error}", definite=False) from None
            if not piece:
                raise ended_early(self._worker)
            reader.feed(piece)
