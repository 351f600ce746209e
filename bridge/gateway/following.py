"""A gateway follows these while it serves: the heads of its logs, the rights of its users, its
certificates, and the schemas of its columns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from typing import Final

from cellfeed.bridge.gateway.context import GatewayContext
from cellfeed.bridge.gateway.topics.typed_topics import TYPED_LOOK_S, TypedTopics
from cellfeed.store.errors import CellfeedError
from cellfeed.store.following.heads import POLL_INTERVAL_S
from cellfeed.store.limits import CERTIFICATES_LOOK_S, SECURITY_LOOK_S
from cellfeed.store.progress import Watch
from cellfeed.store.security.authority import Authority
from cellfeed.store.wakeups.datagrams import Listener

_log = logging.getLogger("cellfeed.gateway")

TURN_SHOWN_EVERY_S: Final = 0.5
"""How often the event loop shows that it turns, in seconds: far below its shortest limit."""


def refresh_heads(context: GatewayContext, listener: Listener) -> None:
    """Takes the wake-ups that have come, and looks at the heads soon."""
    listener.drain()
    context.heads.refresh_soon(_cannot_read)


async def follow_heads(context: GatewayContext, listener: Listener) -> None:
    """The fallback for lost wake-ups: looks at the change token, reads the counters when it
    moved, keeps the wake-up address alive."""
    seen: int | None = None
    with closing(Watch("gateway-heads", "loop")) as watch:
        while True:
            try:
                token = await context.in_thread(context.engine.change_token)
                if token != seen:
                    await context.heads.refresh()
                    seen = token
                await context.in_thread(listener.renew)
                watch.moved()
            except CellfeedError as error:
                watch.waits(str(error))
                _cannot_read(error)
            await asyncio.sleep(POLL_INTERVAL_S)


async def show_turns() -> None:
    """Shows ``/livez`` and ``/readyz`` that the event loop of the gateway turns."""
    with closing(Watch("of the gateway", "event-loop")) as watch:
        while True:
            watch.moved()
            await asyncio.sleep(TURN_SHOWN_EVERY_S)


async def follow_security(context: GatewayContext, authority: Authority) -> None:
    """Puts changed users and ACLs in force, also for fetches that wait."""
    with closing(Watch("gateway-acls", "loop")) as watch:
        while True:
            await asyncio.sleep(SECURITY_LOOK_S)
            if await context.in_thread(authority.look):
                watch.moved()
            else:
                watch.waits(authority.because)
            if context.security is not authority.security:
                context.security = authority.security
                context.kept_fetches.wake()


async def follow_certificates(refresh: Callable[[], None]) -> None:
    """Has the listeners take certificates that were replaced."""
    while True:
        await asyncio.sleep(CERTIFICATES_LOOK_S)
        await asyncio.to_thread(refresh)


async def follow_typed(context: GatewayContext, typed: TypedTopics) -> None:
    """Serves schemas that were registered since."""
    while True:
        await asyncio.sleep(TYPED_LOOK_S)
        try:
            await context.in_thread(typed.look)
        except CellfeedError as error:
            _log.warning(
                "schemas of columns cannot be read just now, and stay as they were: %s", error
            )


def _cannot_read(error: BaseException) -> None:
    _log.warning("the store cannot be read just now: %s", error)
