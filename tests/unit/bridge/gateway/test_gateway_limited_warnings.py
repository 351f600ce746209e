"""Warnings: only so many are written in a time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cellfeed.bridge.gateway import connection
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.store.datastore import Datastore
from cellfeed.store.security.limited_warnings import LimitedWarnings
from tests.unit.bridge.gateway.test_gateway_connection import connect, with_gateway

TOLD_MAX = 3


def test_warnings_beyond_the_limit_are_counted_and_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        warnings = LimitedWarnings(
            logging.getLogger("cellfeed.test"), "peers refused", TOLD_MAX, 0.05
        )
        for number in range(10):
            warnings.warn("peer %d refused", number)
        assert caplog.messages == [f"peer {number} refused" for number in range(TOLD_MAX)]
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, over.set)
        await over.wait()
        assert (
            caplog.messages[TOLD_MAX]
            == "7 more peers refused in the last 0.05 s, not reported one by one"
        )
        warnings.warn("the next one is reported again")
        assert caplog.messages[-1] == "the next one is reported again"

    asyncio.run(asyncio.wait_for(run(), 30))


def test_warnings_up_to_the_limit_are_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        warnings = LimitedWarnings(
            logging.getLogger("cellfeed.test"), "peers refused", TOLD_MAX, 0.01
        )
        for number in range(TOLD_MAX):
            warnings.warn("peer %d refused", number)
        # The time of these is over when the task behind it has run.
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, over.set)
        await over.wait()
        assert caplog.messages == [f"peer {number} refused" for number in range(TOLD_MAX)]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_peer_that_sends_garbage_again_and_again_does_not_fill_the_log(
    datastore: Datastore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = LimitedWarnings(
        logging.getLogger("cellfeed.gateway"),
        "connections closed for malformed frames",
        TOLD_MAX,
        600,
    )
    monkeypatch.setattr(connection, "_refusals", few)

    async def use(gateway: Gateway) -> None:
        for _ in range(TOLD_MAX * 3):
            reader, writer = await connect(gateway)
            writer.write(b"\xff" * 8)
            assert await reader.read() == b""

    with_gateway(datastore, use)
    assert (
        len([message for message in caplog.messages if "closed: a frame of" in message]) == TOLD_MAX
    )
