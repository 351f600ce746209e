"""Answers that are read while they come, in an event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Final, cast

from cellfeed.store.http.calls.steps import Send
from cellfeed.store.http.calls.wire import (
    Answer,
    AnswerReader,
    AttemptFailed,
    ended_early,
    no_connection,
    no_time_left,
)

BUFFERED_BYTES_MAX: Final = 256 << 10
"""Bytes of an answer that wait for their reader; beyond them the connection waits."""


async def stream_answer(step: Send) -> Answer:
    """The answer to a request: with its stream where it is a 200, else whole. It has a connection
    of its own, which ends with the answer."""
    worker = step.worker
    request, number = step.request.written(worker.name, worker.authorization())
    try:
        async with asyncio.timeout(_left_s(step.deadline, worker.name)):
            _, stream = await asyncio.get_running_loop().create_connection(
                lambda: AsynchronousStream(worker.name, number),
                worker.host,
                worker.port,
                ssl=worker.tls(),
            )
    except TimeoutError:
        raise no_connection(worker.name, "timed out") from None
    except OSError as error:
        raise no_connection(worker.name, error) from None
    begun = False
    try:
        answer = await stream.begin(request, step.deadline)
        begun = answer.stream is not None
        return answer
    finally:
        if not begun:
            stream.close()


class AsynchronousStream(asyncio.Protocol):
    """The content of one answer, as it comes. A cancelled :meth:`receive` loses nothing."""

    def __init__(self, worker: str, number: bytes) -> None:
        self._worker = worker
        self._reader = AnswerReader(worker, number)
        self._transport: asyncio.Transport
        self._failed: AttemptFailed | None = None
        self._came: asyncio.Future[None] | None = None
        self._buffered_bytes = 0

    async def begin(self, request: bytes, deadline: float) -> Answer:
        """Sends the request, and reads until the head of a 200, or the whole of another answer.
        Raises AttemptFailed."""
        self._transport.write(request)
        while not self._reader.begins_stream and not self._reader.is_complete:
            await self._more(deadline)
        if self._reader.begins_stream:
            return self._reader.head()._replace(stream=self)
        return self._reader.answer()

    async def receive(self, deadline: float) -> bytes:
        """The content that has come since the last call, once there is some; nothing at the end of
        the answer. Raises AttemptFailed."""
        while True:
            if content := self._reader.taken():
                self._buffered_bytes = 0
                if self._failed is None:
                    self._transport.resume_reading()
                return content
            if self._reader.is_complete:
                return b""
            await self._more(deadline)

    def close(self) -> None:
        self._transport.abort()
        self._end(AttemptFailed(f"{self._worker}: closed", definite=False))

    async def _more(self, deadline: float) -> None:
        if self._failed is not None:
            raise self._failed
        self._came = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_left_s(deadline, self._worker)):
                await self._came
        except TimeoutError:
            raise AttemptFailed(f"{self._worker}: no answer: timed out", definite=False) from None
        finally:
            self._came = None

    # --- called by the loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffered_bytes += len(data)
        if self._buffered_bytes > BUFFERED_BYTES_MAX:
            self._transport.pause_reading()
        try:
            self._reader.feed(data)
        except AttemptFailed as failed:
            self._end(failed)
        else:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._end(ended_early(self._worker))
        else:
            self._end(AttemptFailed(f"{self._worker}: no answer: {exc}", definite=False))

    def _end(self, failed: AttemptFailed) -> None:
        self._failed = self._failed or failed
        self._wake()

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)


def _left_s(deadline: float, worker: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise no_time_left(worker, definite=False)
    return left
