"""The route that waits for an outlet. A wait holds no thread: the outlet's own thread answers all
that wait for it. A wait whose client has gone ends at once."""

from __future__ import annotations

import asyncio
import time
from asyncio import FIRST_COMPLETED
from functools import partial
from typing import Any, Final, cast

from litestar import Request, post

from cellfeed.store.cells.token import Token
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.http.server.asgi import PeerGone, Receive
from cellfeed.store.http.server.callers import Callers, caller_of
from cellfeed.store.http.server.handlers import (
    Name,
    ReadState,
    known_datastore,
    message_of,
    plain_scope,
)
from cellfeed.store.http.server.read_pool import ReadPool
from cellfeed.store.http.server.route_rights import in_body
from cellfeed.store.http.wait_messages import WaitedMessage, WaitMessage
from cellfeed.store.waits.outlet_wait import FIRST_LOOK_S, Wait
from cellfeed.store.waits.waiting import (
    KINDS,
    LONG_POLL_S_MAX,
    Passed,
    check_timeout_s,
    one_outlet,
)

WAIT_THREADS: Final = 2
"""They find the outlets by their names: one that hangs, and one for those that answer."""


class WaitState(ReadState):
    """The handler's state beside that of the reads."""

    wait_looks: ReadPool
    closing: asyncio.Event
    callers: Callers


@post(
    "/v1/{datastore:str}/wait",
    tags=["logs"],
    summary="Wait until an outlet has passed places",
    status_code=200,
    opt={"right": in_body, "body": WaitMessage},
)
async def wait(state: WaitState, datastore: Name, request: Request[Any, Any, Any]) -> WaitedMessage:
    """200 with ``passed`` false when the time was over first; ask again. 404 ``not_found`` for a
    name that there is not, with those that there are; 421 ``other_history`` for a token of another
    store."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, WaitMessage)
    kind, name = one_outlet({each: getattr(wanted, each) for each in KINDS})
    caller = caller_of(plain_scope(request))
    caller.check_group("describe", name)
    timeout_s = min(check_timeout_s(wanted.timeout_s), LONG_POLL_S_MAX)
    token = Token.parse(wanted.token)
    target = await state.wait_looks.run(store.waits.target, token, kind, name)
    loop, looked = asyncio.get_running_loop(), asyncio.Event()
    with store.waits.at(target, token, partial(loop.call_soon_threadsafe, looked.set)) as waiting:
        receive = cast("Receive", request.receive)
        await _until_over(waiting, looked, timeout_s, receive, state.closing)
    state.callers.current(caller).check_group("describe", name)
    title = target.outlet.title
    if waiting.error is not None:
        raise waiting.error
    if waiting.passed is not None:
        return _message(waiting.passed)
    return WaitedMessage(
        outlet=title, passed=False, missing=list(waiting.missing), because=waiting.because
    )


async def _until_over(
    waiting: Wait,
    looked: asyncio.Event,
    timeout_s: float,
    receive: Receive,
    closing: asyncio.Event,
) -> None:
    """Raises PeerGone, StorageUnavailable when the worker ends."""
    deadline_s = time.monotonic() + timeout_s
    ends = [asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(closing.wait())]
    try:
        while not waiting.is_over:
            least_s = 0.0 if waiting.looked else FIRST_LOOK_S
            left_s = max(deadline_s - time.monotonic(), least_s)
            if left_s <= 0:
                return
            look = asyncio.ensure_future(looked.wait())
            await asyncio.wait([look, *ends], timeout=left_s, return_when=FIRST_COMPLETED)
            was_looked = look.done()
            look.cancel()
            looked.clear()
            if ends[0].done():
                raise PeerGone
            if ends[1].done() and not waiting.is_over:
                raise StorageUnavailable("the worker is closing; ask another one")
            if not was_looked:
                return
    finally:
        for each in ends:
            each.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _message(passed: Passed) -> WaitedMessage:
    return WaitedMessage(
        outlet=passed.outlet, passed=True, parked=passed.parked, skipped=passed.skipped
    )
