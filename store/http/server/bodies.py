"""Request bodies on their way in, of all connections of a process.

A body that does not come to its end costs memory, and one of the requests that a worker answers at
a time. So its bytes count against ``BODIES_BYTES_MAX`` while it comes, and it has ``BODY_S``. A
request counts as one being answered once its body is there. Until then it is one of
``COMING_MAX``: when these are full, the body that has come for longest makes room, for a healthy
peer sends its own in much less. Streams of cells are no bodies: each line is handled as it comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from cellfeed.store.errors import BodiesFull, BodyTooLarge, CellfeedError, RequestTimedOut
from cellfeed.store.http.server.asgi import Message, PeerGone, Receive, Scope, header

BODIES_BYTES_MAX: Final = 128 << 20
"""Received bytes of bodies that have not ended: four of the largest, or thousands of usual ones."""

BODY_S: Final = 60.0
"""From a request's head to the end of its body: half a megabyte a second for the largest."""

COMING_MAX: Final = 500
"""Bodies that come at a time."""


class _Coming:
    """A body. ``ended_by``: why it was given up."""

    __slots__ = ("bytes", "ended_by", "since_s", "task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.since_s = time.monotonic()
        self.bytes = 0
        self.ended_by: CellfeedError | None = None


class Bodies:
    """The bodies of a process. Used on the event loop."""

    def __init__(self) -> None:
        self._coming: dict[_Coming, None] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._coming)

    async def read(self, scope: Scope, receive: Receive, bytes_max: int) -> bytes:
        """The whole request body. Raises PeerGone; BodyTooLarge, at once for a body that the peer
        announces as too large; BodiesFull; RequestTimedOut."""
        declared = header(scope, b"content-length")
        if declared and (not declared.isdigit() or int(declared) > bytes_max):
            raise BodyTooLarge(
                f"request body of {declared[:20].decode('latin-1')} bytes; at most {bytes_max} are"
                " allowed"
            )
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is answered by a task")
        coming = _Coming(task)
        self._coming[coming] = None
        try:
            if len(self._coming) > COMING_MAX:
                self._give_up(next(iter(self._coming)), "for longer than all others")
            pieces = [
                piece async for piece in self._pieces(coming, await receive(), receive, bytes_max)
            ]
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except asyncio.CancelledError:
            if coming.ended_by is None:
                raise
            task.uncancel()
            raise coming.ended_by from None
        finally:
            self._coming.pop(coming, None)
            self.bytes -= coming.bytes

    async def _pieces(
        self, coming: _Coming, message: Message, receive: Receive, bytes_max: int
    ) -> AsyncIterator[bytes]:
        while True:
            if message["type"] != "http.request":
                raise PeerGone
            piece = bytes(message.get("body", b""))
            coming.bytes += len(piece)
            self.bytes += len(piece)
            if coming.bytes > bytes_max:
                raise BodyTooLarge(
                    f"request body has more than {bytes_max} bytes, which is the most allowed"
                )
            yield piece
            if not message.get("more_body"):
                return
            if self.bytes > BODIES_BYTES_MAX:
                raise BodiesFull(
                    f"{self.bytes} bytes of request bodies are coming at once; at most"
                    f" {BODIES_BYTES_MAX} are allowed: try again shortly"
                )
            message = await receive()

    def end_overdue(self, now_s: float) -> None:
        """Gives up the bodies that have come for too long. To be called every second."""
        for each in [each for each in self._coming if now_s - each.since_s > BODY_S]:
            self._give_up(each, f"for more than {BODY_S:g} s")

    def end_all(self) -> None:
        """The process is to end."""
        for each in list(self._coming):
            self._give_up(each, "when the worker had to end")

    def _give_up(self, coming: _Coming, how_long: str) -> None:
        del self._coming[coming]
        coming.ended_by = RequestTimedOut(
            f"the request's body was still coming {how_long}: send it again"
        )
        coming.task.cancel()


BODIES: Final = Bodies()
"""Those of this process."""


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """As :meth:`Bodies.read`."""
    return await BODIES.read(scope, receive, bytes_max)
