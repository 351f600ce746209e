"""Quotas of requests over HTTP (:mod:`cellfeed.store.security.quotas`).

A request of a principal that owes is refused with 429 and ``Retry-After``: nothing of it was
carried out. One that was let in pays for the bytes that it puts, or reads, while they come. So a
stream slows down to its quota: the server stops reading from the peer, or sending to it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cellfeed.store.errors import QuotaExceeded
from cellfeed.store.http.server.asgi import Message, Receive, Scope, Send
from cellfeed.store.http.server.callers import caller_of
from cellfeed.store.security.quotas import Quotas

PUTS: Final = ("put_one", "put_many")
"""Routes whose requests pay for the bytes that they bring; others pay for those of their
answers."""

FREE: Final = ("/livez", "/readyz", "/health", "/health/live", "/health/ready", "/metrics")
"""Paths that anybody may ask for at any time."""

STREAM_PAUSE_MAX_S: Final = 3.0
"""How long a piece of a stream waits for its quota: half of the silence after which a follower
takes the worker for dead (:mod:`cellfeed.store.http.wakeup_links`)."""


def admitted(
    quotas: Quotas, scope: Scope, route: str, receive: Receive, send: Send
) -> tuple[Receive, Send]:
    """Lets a request of ``scope`` in, whose caller is known. Returns the ways of its content and of
    its answer, which pay for their bytes. Probes and metrics are free: a worker whose clients owe
    is well. Raises QuotaExceeded."""
    if not quotas or scope["path"] in FREE:
        return receive, send
    principal = caller_of(scope).principal
    if (debt_s := quotas.debt_s(principal)) > 0:
        raise QuotaExceeded(
            f"{principal!a} asks for more than its quota; try again in {debt_s:.1f} s", debt_s
        )
    quotas.spend(principal, requests=1)
    if route in PUTS:

        async def received() -> Message:
            message: Message = await receive()
            await _pay(quotas, principal, put_bytes=len(message.get("body", b"")))
            return message

        return received, send

    async def sent(message: Any) -> None:
        await send(message)
        size = len(message.get("body", b""))
        if message.get("more_body"):
            await _pay(quotas, principal, read_bytes=size)
        else:
            quotas.spend(principal, read_bytes=size)

    return receive, sent


async def _pay(quotas: Quotas, principal: str, **amount: int) -> None:
    """Waits until the bytes are paid for."""
    quotas.spend(principal, **amount)
    if (debt_s := quotas.debt_s(principal)) > 0:
        pause_s = min(debt_s, STREAM_PAUSE_MAX_S)
        quotas.waited(pause_s)
        await asyncio.sleep(pause_s)
