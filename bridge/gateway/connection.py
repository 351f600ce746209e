"""One client's connection: frames in, frames out, in the order of the requests.

A request waits for the one before it, so answers never overtake each other; clients open a second connection for what they do not want to wait.
Whatever a peer sends (garbage, half a frame, a lying count, nothing at all) costs at most this connection.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Final

from bridge.gateway import api_18_api_versions
from bridge.gateway.apis import APIS, FLEXIBLE_FROM
from bridge.gateway.context import GatewayContext, Peer
from bridge.gateway.frame_check import MalformedFrame
from bridge.gateway.limits import FRAME_BYTES_MAX, FRAME_TIMEOUT_S, IDLE_TIMEOUT_S, SEND_TIMEOUT_S
from bridge.gateway.protocol import API_VERSIONS, RequestHead, read_head, read_request, write_response

_log = logging.getLogger("cellfeed.gateway")
_SMALLEST_FRAME: Final = 10


async def serve_connection(context: GatewayContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serves one client until it goes, breaks the protocol or stays silent too long."""
    host = str((writer.get_extra_info("peername") or ("?",))[0])
    try:
        while (frame := await _read_frame(reader)) is not None:
            answer = await _answer(context, frame, host)
            writer.writelines(answer)
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await writer.drain()
    except MalformedFrame as error:
        _log.warning("connection from %s closed: %s", host, error)
    except (ConnectionError, TimeoutError, asyncio.IncompleteReadError) as error:
        _log.debug("connection from %s ended: %s", host, error)
    except Exception:
        # The store being away is told to clients by closing: they reconnect and try again, which is what they do when a broker goes.
        _log.exception("connection from %s closed", host)
    finally:
        writer.close()


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None when the peer closed between two frames. The length is checked before anything is read."""
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        first = await reader.read(1)
    if not first:
        return None
    async with asyncio.timeout(FRAME_TIMEOUT_S):
        [size] = struct.unpack(">i", first + await reader.readexactly(3))
        if not _SMALLEST_FRAME <= size <= FRAME_BYTES_MAX:
            raise MalformedFrame(f"a frame of {size} bytes; {_SMALLEST_FRAME} to {FRAME_BYTES_MAX} are allowed")
        return await reader.readexactly(size)


async def _answer(context: GatewayContext, frame: bytes, host: str) -> list[bytes]:
    head = read_head(frame, FLEXIBLE_FROM)
    api = APIS.get(head.api_key)
    if api is None:
        raise MalformedFrame(f"API key {head.api_key} is not spoken here")
    if not api.versions[0] <= head.version <= api.versions[1]:
        if head.api_key == API_VERSIONS:
            return [write_response(RequestHead(API_VERSIONS, 0, head.correlation_id, head.client_id, 0), api_18_api_versions.unsupported())]
        raise MalformedFrame(f"version {head.version} of API {head.api_key} is not spoken here; {api.versions[0]} to {api.versions[1]} are")
    request = read_request(frame, head)
    result = await api.handle(context, request, head, Peer(head.client_id, host, head.version))
    return result if isinstance(result, list) else [write_response(head, result)]
