"""The gateway's part of quotas (:mod:`cellfeed.store.security.quotas`).

A request waits on its connection until its principal owes nothing, as with Kafka's brokers before
version 2.0: so every client obeys, also one that does not know ``throttle_time_ms``, which is 0
here. Two principals never wait for each other. A Fetch pays for the bytes of its answer.
"""

from __future__ import annotations

import asyncio

from cellfeed.bridge.gateway.limits import THROTTLE_FETCH_MAX_S, THROTTLE_MAX_S
from cellfeed.bridge.gateway.wire.protocol import FETCH
from cellfeed.store.security.quotas import Quotas


async def wait_for_quota(quotas: Quotas, principal: str, api_key: int) -> None:
    """Waits until the principal may ask, or for as long as such a request may wait, and takes the
    request. Requests that read no cells pay for their number alone: a commit does not wait for
    bytes."""
    if not quotas:
        return
    is_fetch = api_key == FETCH
    debt_s = quotas.debt_s(principal) if is_fetch else quotas.request_debt_s(principal)
    if debt_s > 0:
        wait_s = min(debt_s, THROTTLE_FETCH_MAX_S if is_fetch else THROTTLE_MAX_S)
        quotas.waited(wait_s)
        await asyncio.sleep(wait_s)
    quotas.spend(principal, requests=1)


def pay_for_answer(quotas: Quotas, principal: str, api_key: int, answer: list[bytes]) -> None:
    """Takes the bytes of a Fetch's answer."""
    if quotas and api_key == FETCH:
        quotas.spend(principal, read_bytes=sum(map(len, answer)))
