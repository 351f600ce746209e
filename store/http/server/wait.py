"""The route that waits for an outlet. A wait holds no thread: it looks, from time to time, in a few
threads of its own, so that a coordination that hangs holds up no reads."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from litestar import Request, post

from cellfeed.store.cells.token import Token
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.http.server.read_pool import ReadPool
from cellfeed.store.http.server.reads import Name, ReadState, known_datastore, message_of
from cellfeed.store.http.wait_messages import WaitedMessage, WaitMessage
from cellfeed.store.waiting import (
    KINDS,
    LONG_POLL_S_MAX,
    Passed,
    Wait,
    check_timeout_s,
    one_outlet,
    pauses,
)

WAIT_THREADS: Final = 2
"""One that hangs, and one for the outlets that answer."""


class WaitState(ReadState):
    """The handler's state beside that of the reads."""

    wait_looks: ReadPool
    closing: asyncio.Event


@post(
    "/v1/{datastore:str}/wait",
    tags=["logs"],
    summary="Wait until an outlet has passed places",
    status_code=200,
    opt={"body": WaitMessage},
)
async def wait(state: WaitState, datastore: Name, request: Request[Any, Any, Any]) -> WaitedMessage:
    """200 with ``passed`` false when the time was over first; ask again. 404 ``not_found`` for a
    name that there is not, with those that there are; 421 ``other_history`` for a token of another
    store."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, WaitMessage)
    kind, name = one_outlet({each: getattr(wanted, each) for each in KINDS})
    timeout_s = min(check_timeout_s(wanted.timeout_s), LONG_POLL_S_MAX)
    token = Token.parse(wanted.token)
    outlet = await state.wait_looks.run(store.waits.outlet, token, kind, name)
    with store.waits.at(outlet, token) as waiting:
        return await _answer(state, waiting, timeout_s)


async def _answer(state: WaitState, waiting: Wait, timeout_s: float) -> WaitedMessage:
    for pause_s in pauses(timeout_s):
        if (passed := await state.wait_looks.run(waiting.look)) is not None:
            return _message(passed)
        if state.closing.is_set():
            raise StorageUnavailable("the worker is closing; ask another one")
        await asyncio.sleep(pause_s)
    if (passed := await state.wait_looks.run(waiting.look)) is not None:
        return _message(passed)
    return WaitedMessage(
        outlet=waiting.outlet, passed=False, missing=waiting.missing, because=waiting.because
    )


def _message(passed: Passed) -> WaitedMessage:
    return WaitedMessage(
        outlet=passed.outlet, passed=True, parked=passed.parked, skipped=passed.skipped
    )
