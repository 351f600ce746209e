"""Requests of a peer that is not known yet: which are allowed, and how authentication answers."""

from __future__ import annotations

from typing import Any, Final

from cellfeed.bridge.gateway.apis import (
    api_17_sasl_handshake,
    api_36_sasl_authenticate,
)
from cellfeed.bridge.gateway.apis.advertised import FLEXIBLE_FROM
from cellfeed.bridge.gateway.request import Request
from cellfeed.bridge.gateway.security.authentication import Authentication
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame
from cellfeed.bridge.gateway.wire.protocol import (
    API_VERSIONS,
    read_head,
    write_response,
)

_SASL_HANDSHAKE: Final = api_17_sasl_handshake.KEY
_SASL_AUTHENTICATE: Final = api_36_sasl_authenticate.KEY


def check_kind(frame: bytes) -> None:
    """Raises MalformedFrame for a request that nobody sends before authentication."""
    kind = read_head(frame, FLEXIBLE_FROM).api_key
    if kind not in (API_VERSIONS, _SASL_HANDSHAKE, _SASL_AUTHENTICATE):
        raise MalformedFrame("a request before authentication")


async def sasl_answer(request: Request, authentication: Authentication) -> list[bytes] | None:
    """The answer of authentication; None for a request of another kind."""
    body: Any = request.body
    if request.head.api_key == _SASL_HANDSHAKE:
        return [write_response(request.head, authentication.handshake(body.mechanism))]
    if request.head.api_key == _SASL_AUTHENTICATE:
        answer = await authentication.authenticate(bytes(body.auth_bytes))
        return [write_response(request.head, answer)]
    return None
