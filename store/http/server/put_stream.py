"""Streaming batch puts: NDJSON in, a result line per line out, in order, while the request is still
coming. Memory does not grow with the stream.

The reader cuts the lines that have arrived into chunks and hands each to the group commit; the
writer sends the results of the oldest chunk as soon as they are there. Between them stand at most
``CHUNKS_IN_FLIGHT_MAX`` chunks: when the disk, or a peer that does not read its results, is slower
than the stream, reading stops, and TCP slows the sender. A peer that sends for ever without reading
is cut off by the connection's own limits (:mod:`cellfeed.store.http.server.connections`). Its cells
may have been written, and sending them again is safe.

A blank line has no result. A line that is no put gets a ``failed`` result and the stream continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.errors import BodyTooLarge, CellfeedError, StorageUnavailable
from cellfeed.store.http.server.asgi import Message, PeerGone, Receive, Send
from cellfeed.store.http.server.callers import Watched
from cellfeed.store.http.server.requests import PutItem, put_line
from cellfeed.store.http.server.responses import result_lines, start_stream
from cellfeed.store.limits import BODY_BYTES_MAX

Results = Coroutine[Any, Any, list[PutResult]]

CHUNK_CELLS_MAX: Final = 500
"""Cells handed to the group commit at once: enough to share its cost, few enough that a slow stream
is answered soon."""

CHUNKS_IN_FLIGHT_MAX: Final = 4
"""Chunks read and not yet answered."""

LINE_BYTES_MAX: Final = 4 * BODY_BYTES_MAX + 4096
"""One line: a body as text may be longer than in canonical form
(:func:`cellfeed.store.cells.canonical_json.canonical_from_json`), and has its envelope."""

_TOO_LONG: Final = b"\0too long"


class LineSplitter:
    """Bytes to lines. A line beyond ``LINE_BYTES_MAX`` is not kept: :data:`_TOO_LONG` stands in its
    place."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._skipping = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that ``piece`` completes."""
        *complete, rest = piece.split(b"\n")
        lines = [self._complete(part) for part in complete]
        self._keep(rest)
        return lines

    def rest(self) -> list[bytes]:
        """The last line, when the stream ended without a line end."""
        return [self._complete(b"")] if self._kept or self._skipping else []

    def _complete(self, part: bytes) -> bytes:
        self._keep(part)
        line = _TOO_LONG if self._skipping else bytes(self._kept)
        self._kept.clear()
        self._skipping = False
        return line

    def _keep(self, part: bytes) -> None:
        if self._skipping or len(self._kept) + len(part) > LINE_BYTES_MAX:
            self._kept.clear()
            self._skipping = True
        else:
            self._kept += part


class PutStream:
    """One streamed put. ``submit`` hands a chunk to the group commit and returns an awaitable of
    its results, one per item, never an error.

    ``closing`` is set when the worker is to end. ``watched``: the caller, whose credentials may
    end before the stream.
    """

    def __init__(
        self,
        shards: int,
        submit: Callable[[Sequence[PutItem]], Awaitable[Results]],
        closing: asyncio.Event,
        watched: Watched | None = None,
    ) -> None:
        self._watched = watched
        self._shards = shards
        self._submit = submit
        self._closing = closing
        self._in_flight: asyncio.Queue[Results | None] = asyncio.Queue(CHUNKS_IN_FLIGHT_MAX)

    async def answer(self, receive: Receive, send: Send) -> None:
        """Reads the request to its end and answers every line. When the worker closes, the lines
        read so far are answered and the stream ends.

        Raises PeerGone when the peer went away first; submitted cells are still written.
        """
        await start_stream(send)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(receive))
            tasks.create_task(self._write(send))
        if not reading.result():
            raise PeerGone
        await send({"type": "http.response.body", "body": b""})

    async def _read(self, receive: Receive) -> bool:
        """Whether the request came to its end, or was ended by the worker."""
        lines = LineSplitter()
        closing = asyncio.ensure_future(self._ended())
        try:
            while (piece := await _first(receive(), closing)) is not None:
                if piece["type"] != "http.request":
                    return False
                await self._submit_lines(lines.feed(piece.get("body", b"")))
                if not piece.get("more_body"):
                    await self._submit_lines(lines.rest())
                    return True
            await self._in_flight.put(_failed(self._watched.error if self._watched else None))
            return True
        finally:
            closing.cancel()
            await self._in_flight.put(None)

    async def _ended(self) -> None:
        """Waits until the worker closes, or the caller's credentials have ended."""
        events = [self._closing, *([self._watched.ended] if self._watched is not None else [])]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _submit_lines(self, lines: Sequence[bytes]) -> None:
        items = [self._item(line) for line in lines if line.strip()]
        for start in range(0, len(items), CHUNK_CELLS_MAX):
            # One after another, so that the cells of a stream come into the log in its order.
            await self._in_flight.put(await self._submit(items[start : start + CHUNK_CELLS_MAX]))

    def _item(self, line: bytes) -> PutItem:
        if line is _TOO_LONG:
            return PutResult(
                Outcome.FAILED,
                None,
                error=BodyTooLarge(
                    f"line has more than {LINE_BYTES_MAX} bytes, which is the most allowed"
                ),
            )
        return put_line(line, self._shards)

    async def _write(self, send: Send) -> None:
        while (results := await self._in_flight.get()) is not None:
            await send(
                {
                    "type": "http.response.body",
                    "body": result_lines(await results),
                    "more_body": True,
                }
            )


async def _first(receiving: Awaitable[Message], closing: asyncio.Future[Any]) -> Message | None:
    """The next message of the request; None when the worker closes first."""
    message = asyncio.ensure_future(receiving)
    await asyncio.wait({message, closing}, return_when=asyncio.FIRST_COMPLETED)
    if message.done() and not closing.done():
        return message.result()
    message.cancel()
    return None


async def _failed(error: CellfeedError | None) -> list[PutResult]:
    closing = StorageUnavailable("the worker is closing; send the lines that have no result again")
    return [PutResult(Outcome.FAILED, None, error=error or closing)]
