"""Room for large requests, shared by all connections of a gateway: many peers with big frames
cannot add up to the process's memory.

Room is taken for received bytes, not for announced ones: the first LARGE_FRAME_BYTES of a frame
take none, and each step from there at most doubles it. So nobody holds more than twice the bytes it
has sent; fourteen bytes that announce the largest frame hold nothing, and keep nobody waiting.
Several that wait for each other's room end with the time that each of them has for its frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cellfeed.bridge.gateway.limits import LARGE_FRAME_BYTES, LARGE_FRAMES_BYTES_MAX


class LargeFrames:
    """The room of one gateway. Used by the event loop."""

    def __init__(self, bytes_max: int = LARGE_FRAMES_BYTES_MAX) -> None:
        self._left = bytes_max
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def room(self) -> AsyncIterator[Room]:
        """Room for one frame, given back at the end of the block."""
        room = Room(self)
        try:
            yield room
        finally:
            if room.taken:
                self._left += room.taken
                async with self._freed:
                    self._freed.notify_all()

    async def take(self, size: int) -> None:
        """Waits until ``size`` bytes are free and takes them."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._left >= size)
            self._left -= size


class Room:
    """The room of one frame, in bytes."""

    def __init__(self, frames: LargeFrames) -> None:
        self._frames = frames
        self.taken = 0

    async def grow(self, size: int) -> None:
        """Waits until the frame may have ``size`` bytes. Small frames take no room."""
        if size > LARGE_FRAME_BYTES:
            await self._frames.take(size - self.taken)
            self.taken = size


async def read_frame(reader: asyncio.StreamReader, size: int, room: Room) -> bytes:
    """The frame's bytes, read as room is had for them. Raises IncompleteReadError when the peer
    stops before."""
    frame = await reader.readexactly(min(size, LARGE_FRAME_BYTES))
    while len(frame) < size:
        more = min(len(frame), size - len(frame))
        await room.grow(len(frame) + more)
        frame += await reader.readexactly(more)
    return frame
