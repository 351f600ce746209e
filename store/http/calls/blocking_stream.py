"""Sockets that wait: making one, and answers that the caller's thread reads while they come."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Final

from cellfeed.store.http.calls.steps import Send
from cellfeed.store.http.calls.wire import (
    Answer,
    AnswerReader,
    AttemptFailed,
    ended_early,
    no_connection,
    no_time_left,
)
from cellfeed.store.http.calls.workers import Worker

RECV_BYTES: Final = 1 << 16


def connected(worker: Worker, deadline: float) -> socket.socket:
    """A socket to the worker. Raises AttemptFailed."""
    context = worker.tls()
    made: socket.socket | None = None
    try:
        made = socket.create_connection(
            (worker.host, worker.port), timeout=left_s(deadline, worker.name, definite=True)
        )
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            made.settimeout(left_s(deadline, worker.name, definite=True))
            made = context.wrap_socket(made, server_hostname=worker.host)
    except OSError as error:
        if made is not None:
            made.close()
        raise no_connection(worker.name, error) from None
    return made


def left_s(deadline: float, worker: str, *, definite: bool) -> float:
    """The seconds that are left. Raises AttemptFailed when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise no_time_left(worker, definite=definite)
    return left


def stream_answer(step: Send) -> Answer:
    """The answer to a request: with its stream where it is a 200, else whole. It has a connection
    of its own, which ends with the answer."""
    made = connected(step.worker, step.deadline)
    stream: BlockingStream | None = None
    try:
        request, number = step.request.written(step.worker.name, step.worker.authorization())
        opening = BlockingStream(made, step.worker.name, number)
        answer = opening.begin(request, step.deadline)
        if answer.stream is not None:
            stream = opening
        return answer
    finally:
        if stream is None:
            made.close()


class BlockingStream:
    """The content of one answer, as it comes."""

    def __init__(self, made: socket.socket, worker: str, number: bytes) -> None:
        self._socket = made
        self._worker = worker
        self._reader = AnswerReader(worker, number)

    def begin(self, request: bytes, deadline: float) -> Answer:
        """Sends the request, and reads until the head of a 200, or the whole of another answer.
        Raises AttemptFailed."""
        try:
            self._socket.settimeout(left_s(deadline, self._worker, definite=True))
            self._socket.sendall(request)
        except OSError as error:
            raise AttemptFailed(
                f"{self._worker}: cut off while sending: {error}", definite=False
            ) from None
        while not self._reader.begins_stream and not self._reader.is_complete:
            self._read(deadline)
        if self._reader.begins_stream:
            return self._reader.head()._replace(stream=self)
        return self._reader.answer()

    def receive(self, deadline: float) -> bytes:
        """The content that has come since the last call, once there is some; nothing at the end of
        the answer. Raises AttemptFailed."""
        while True:
            if content := self._reader.taken():
                return content
            if self._reader.is_complete:
                return b""
            self._read(deadline)

    def close(self) -> None:
        """Ends a call of :meth:`receive` in another thread, too."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def leave(self) -> None:
        """Closes this side alone: the connection is that of a parent process."""
        self._socket.close()

    def _read(self, deadline: float) -> None:
        try:
            self._socket.settimeout(left_s(deadline, self._worker, definite=False))
            piece = self._socket.recv(RECV_BYTES)
        except OSError as error:
            raise AttemptFailed(f"{self._worker}: no answer: {error}", definite=False) from None
        if not piece:
            raise ended_early(self._worker)
        self._reader.feed(piece)
