"""Sends answers to a peer, no faster than it takes them."""

from __future__ import annotations

import asyncio
from typing import Final

from cellfeed.bridge.gateway.limits import SEND_TIMEOUT_S, TLS_PIECE_BYTES
from cellfeed.bridge.gateway.unsent import Unsent

_BUFFER_BYTES: Final = 4 << 20
"""Bytes of plain answers that may wait for a slow reader before its next request is looked at: they
are references to kept blocks."""

_COUNTED_BYTES: Final = 64 << 10
"""Smaller answers are not counted: the system's own buffers take them."""


class Sender:
    """The answers of one connection. Used on the event loop, by one task at a time."""

    def __init__(
        self, writer: asyncio.StreamWriter, unsent: Unsent, connection: int, host: str
    ) -> None:
        self._writer = writer
        self._unsent = unsent
        self._connection = connection
        self._host = host
        self._has_tls = writer.get_extra_info("ssl_object") is not None
        self.farewell_s = SEND_TIMEOUT_S
        """How long the peer has to take its last answers."""
        writer.transport.set_write_buffer_limits(
            high=TLS_PIECE_BYTES if self._has_tls else _BUFFER_BYTES
        )

    async def send(self, answer: list[bytes]) -> None:
        """Sends an answer in full; returns when the peer has taken most of it. Raises
        ConnectionError, TimeoutError for a peer that has not read anything for ``SEND_TIMEOUT_S``.
        """
        if self._writer.is_closing():
            # uvloop would say so as a RuntimeError
            raise ConnectionResetError("the peer went while it was answered")
        size = sum(map(len, answer))
        if size < _COUNTED_BYTES:
            self._writer.writelines(answer)
            await self._drained()
        else:
            self._unsent.found(self._connection, self._host, size)
            await self._send_large(answer)
        self._unsent.sent(self._connection)

    async def _send_large(self, answer: list[bytes]) -> None:
        if not self._has_tls:
            self._writer.writelines(answer)
            await self._drained()
            return
        for part in answer:
            view = memoryview(part)
            for start in range(0, len(part), TLS_PIECE_BYTES):
                self._writer.write(view[start : start + TLS_PIECE_BYTES])
                await self._drained()

    async def _drained(self) -> None:
        if not self._writer.transport.get_write_buffer_size():
            return
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._writer.drain()
        except TimeoutError:
            self.farewell_s = 0.0
            raise

    async def close(self) -> None:
        """Gives the peer ``farewell_s`` to take the answers; then the socket goes with the unsent
        bytes, which would be kept for ever otherwise."""
        self._writer.close()
        try:
            async with asyncio.timeout(self.farewell_s):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            self._writer.transport.abort()
            self._unsent.sent(self._connection)
