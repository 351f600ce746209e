"""One request of a client: the frame, checked against the spoken APIs and parsed."""

from __future__ import annotations

import time

from cellfeed.bridge.gateway.apis import (
    api_01_fetch,
)
from cellfeed.bridge.gateway.apis.advertised import APIS, FLEXIBLE_FROM
from cellfeed.bridge.gateway.context import GatewayContext
from cellfeed.bridge.gateway.limits import (
    LARGE_FRAME_BYTES,
)
from cellfeed.bridge.gateway.wire.fetch_request import read_fetch
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame
from cellfeed.bridge.gateway.wire.protocol import (
    API_VERSIONS,
    RequestHead,
    read_head,
    read_request,
)


class Request:
    """A frame that was read and parsed."""

    def __init__(self, head: RequestHead, body: object) -> None:
        self.head = head
        self.body = body
        self.read_s = time.monotonic()


async def parsed(context: GatewayContext, frame: bytes) -> Request:
    """The request in a frame; a large one is parsed in a thread. Raises MalformedFrame."""
    head = read_head(frame, FLEXIBLE_FROM)
    api = APIS.get(head.api_key)
    if api is None:
        raise MalformedFrame(f"API key {head.api_key} is not spoken here")
    if not api.versions[0] <= head.version <= api.versions[1]:
        if head.api_key == API_VERSIONS:
            return Request(head, None)
        raise MalformedFrame(
            f"version {head.version} of API {head.api_key} is not spoken here;"
            f" {api.versions[0]} to {api.versions[1]} are"
        )
    if head.api_key == api_01_fetch.KEY:
        return Request(head, read_fetch(frame, head))
    if len(frame) > LARGE_FRAME_BYTES:
        return Request(head, await context.in_thread(read_request, frame, head))
    return Request(head, read_request(frame, head))
