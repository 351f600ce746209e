"""One client's connection: frames in, frames out, in the order of the requests.

Two tasks: one reads requests ahead (a few), the other answers them one after the other, so answers
never overtake each other; clients open a second connection for requests that must not wait. By
reading ahead (:mod:`cellfeed.bridge.gateway.wire.request_queue`) a connection notices at once that
its peer went away while its fetch waits.

Anything a peer sends (garbage, half a frame, a lying count, nothing at all) costs at most this
connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
import time
from collections.abc import Callable
from typing import Final

from cellfeed.bridge.gateway.apis import (
    api_18_api_versions,
)
from cellfeed.bridge.gateway.apis.advertised import APIS
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.limits import (
    AUTHENTICATION_FRAME_BYTES_MAX,
    AUTHENTICATION_REQUESTS_MAX,
    FRAME_BYTES_MAX,
    FRAME_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    STOP_TIMEOUT_S,
)
from cellfeed.bridge.gateway.request import Request, parsed
from cellfeed.bridge.gateway.request_tallies import error_codes
from cellfeed.bridge.gateway.sasl_requests import check_kind, sasl_answer
from cellfeed.bridge.gateway.security.authentication import Authentication
from cellfeed.bridge.gateway.sending import Sender
from cellfeed.bridge.gateway.throttling import pay_for_answer, wait_for_quota
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame
from cellfeed.bridge.gateway.wire.large_frames import LargeFrames, read_frame
from cellfeed.bridge.gateway.wire.protocol import (
    API_VERSIONS,
    RequestHead,
    write_response,
)
from cellfeed.bridge.gateway.wire.request_queue import RequestQueue
from cellfeed.store.limits import (
    AUTHENTICATION_TIMEOUT_S,
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
)
from cellfeed.store.security.limited_warnings import LimitedWarnings
from cellfeed.store.security.users import ANONYMOUS

_log = logging.getLogger("cellfeed.gateway")
_refusals = LimitedWarnings(
    _log, "connections closed for malformed frames", PEER_WARNINGS_MAX, PEER_WARNINGS_S
)
_SMALLEST_FRAME: Final = 10


_numbers: Final = itertools.count()


class Connection:
    """Serves one client until it goes, breaks the protocol or stays silent too long."""

    def __init__(
        self,
        context: GatewayContext,
        listener: str,
        large_frames: LargeFrames,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        principal: str = ANONYMOUS,
        authentication: Authentication | None = None,
        on_known: Callable[[], object] = lambda: None,
    ) -> None:
        """``on_known`` is called when the peer may ask for anything."""
        self._context = context
        self._listener = listener
        self._principal = principal
        self._authentication = authentication
        self._large_frames = large_frames
        self._reader = reader
        self._writer = writer
        self._number = next(_numbers)
        self._host = str((writer.get_extra_info("peername") or ("?",))[0])
        self._requests = RequestQueue[Request]()
        self._answering = False
        self._sender = Sender(writer, context.unsent, self._number, self._host)
        self._on_known = on_known

    async def serve(self) -> None:
        """Ends when the connection does; errors of the peer are logged, not raised."""
        halves: list[asyncio.Task[None]] = []
        try:
            if self._authentication is not None and not await self._authenticate(
                self._authentication
            ):
                return
            self._on_known()
            halves = [
                asyncio.create_task(self._read_requests()),
                asyncio.create_task(self._answer_requests()),
            ]
            done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            for half in done:
                half.result()
        except MalformedFrame as error:
            _refusals.warn("connection from %s closed: %s", self._host, error)
        except asyncio.CancelledError:
            self._sender.farewell_s = min(self._sender.farewell_s, STOP_TIMEOUT_S)
            raise
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError) as error:
            _log.debug("connection from %s ended: %s", self._host, error)
        except Exception:
            # Closing shows clients that the store is away: they reconnect and try again, as they do
            # when a broker goes.
            _log.exception("connection from %s closed", self._host)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            self._context.kept_fetches.left(self._number)
            await self._sender.close()

    # --- before anybody is known ------------------------------------------------------------------

    async def _authenticate(self, authentication: Authentication) -> bool:
        """One small request after the other, of few kinds, within one time for all of them. False
        when the peer is not let in."""
        async with asyncio.timeout(AUTHENTICATION_TIMEOUT_S):
            for _ in range(AUTHENTICATION_REQUESTS_MAX):
                [size] = struct.unpack(">i", await self._reader.readexactly(4))
                if not _SMALLEST_FRAME <= size <= AUTHENTICATION_FRAME_BYTES_MAX:
                    raise MalformedFrame(
                        f"a frame of {size} bytes before authentication;"
                        f" {AUTHENTICATION_FRAME_BYTES_MAX} are allowed"
                    )
                frame = await self._reader.readexactly(size)
                check_kind(frame)
                request = await parsed(self._context, frame)
                answer = await sasl_answer(request, authentication)
                await self._sender.send(answer or await self._answer(request, size))
                if authentication.has_failed:
                    return False
                if authentication.principal is not None:
                    self._principal = authentication.principal
                    return True
        raise MalformedFrame(f"{AUTHENTICATION_REQUESTS_MAX} requests without an authentication")

    # --- in ---------------------------------------------------------------------------------------

    async def _read_requests(self) -> None:
        while first := await self._first_byte():
            async with asyncio.timeout(FRAME_TIMEOUT_S):
                [size] = struct.unpack(">i", first + await self._reader.readexactly(3))
            # The length is checked before anything is read, and room taken before anything is
            # allocated.
            if not _SMALLEST_FRAME <= size <= FRAME_BYTES_MAX:
                raise MalformedFrame(
                    f"a frame of {size} bytes; {_SMALLEST_FRAME} to {FRAME_BYTES_MAX} are allowed"
                )
            async with self._large_frames.room() as room:
                async with asyncio.timeout(FRAME_TIMEOUT_S):
                    frame = await read_frame(self._reader, size, room)
                request = await parsed(self._context, frame)
            await self._requests.put((request, size))

    async def _first_byte(self) -> bytes:
        """The first byte of the next frame; none when the peer closed between two frames. A peer
        that waits for an answer is not idle."""
        while True:
            try:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    return await self._reader.read(1)
            except TimeoutError:
                if not self._answering:
                    raise

    # --- out --------------------------------------------------------------------------------------

    async def _answer_requests(self) -> None:
        while True:
            request, size = await self._requests.get()
            self._answering = True
            quotas, api_key = self._context.quotas, request.head.api_key
            await wait_for_quota(quotas, self._principal, api_key)
            answer = await self._answer(request, size)
            pay_for_answer(quotas, self._principal, api_key, answer)
            await self._sender.send(answer)
            self._answering = not self._requests.empty()

    async def _answer(self, request: Request, size: int) -> list[bytes]:
        head = request.head
        if request.body is None:
            return [
                write_response(
                    RequestHead(API_VERSIONS, 0, head.correlation_id, head.client_id, 0),
                    api_18_api_versions.unsupported(),
                )
            ]
        peer = Peer(
            head.client_id,
            self._host,
            head.version,
            self._listener,
            self._principal,
            self._number,
            request.read_s,
        )
        result = await APIS[head.api_key].handle(self._context, request.body, head, peer)
        tallies = self._context.tallies
        if isinstance(result, list):
            answer = result
        else:
            answer = [write_response(head, result)]
            tallies.failed(head.api_key, error_codes(result))
        sent = sum(map(len, answer))
        tallies.answered(head.api_key, time.monotonic() - request.read_s, size, sent)
        return answer
