"""A gateway whose loops hang is not ready, and one whose event loop hangs is not alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway import following
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.store import progress
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.progress import ProgressLimits, set_limits, unalive, unready
from cellfeed.store.security import authority
from cellfeed.store.security.access import Security
from cellfeed.store.security.users import read_security
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def _watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_registry", progress._Registry())
    set_limits(ProgressLimits(event_loop_s=5, loop_s=0.3))


class Hang:
    """Stands in for a call, which hangs once it is armed, until the test has seen the effect. A
    start makes the same calls, and waits for their end."""

    def __init__(self) -> None:
        self.armed, self.begun, self.released = (threading.Event() for _ in range(3))

    def __call__(self, *_: object) -> None:
        if self.armed.is_set():
            self.begun.set()
            assert self.released.wait(60)


def gateway_of(datastore: Datastore) -> Gateway:
    config = GatewayConfig(port=0, registry_port=0)
    return Gateway(datastore, StoreCoordinator(datastore.state), config)


def served(datastore: Datastore, while_it_serves: Callable[[], None]) -> None:
    async def serve() -> None:
        gateway = gateway_of(datastore)
        await gateway.start()
        try:
            await asyncio.to_thread(while_it_serves)
        finally:
            await gateway.stop()

    asyncio.run(serve())
    assert unready() == []


def stands(hang: Hang, part: str) -> None:
    hang.armed.set()
    assert hang.begun.wait(60)
    wait_until(lambda: part in {each.part for each in unready()}, f"{part} stands")
    hang.released.set()
    wait_until(lambda: unready() == [], f"{part} moves again")


def test_a_gateway_that_no_longer_looks_at_the_heads_is_not_ready(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang, look = Hang(), datastore.engine.change_token

    def hang_once() -> int:
        hang()
        return look()

    def while_it_serves() -> None:
        monkeypatch.setattr(datastore.engine, "change_token", hang_once)
        stands(hang, "gateway-heads")

    served(datastore, while_it_serves)


def test_a_gateway_that_no_longer_follows_rights_is_not_ready(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = Hang()

    def hang_once(state: StateTable) -> Security:
        hang()
        return read_security(state)

    def while_it_serves() -> None:
        monkeypatch.setattr(authority, "read_security", hang_once)
        stands(hang, "gateway-acls")

    monkeypatch.setattr(following, "SECURITY_LOOK_S", 0.01)
    served(datastore, while_it_serves)


def test_a_gateway_whose_event_loop_hangs_is_not_alive(datastore: Datastore) -> None:
    set_limits(ProgressLimits(event_loop_s=0.2))
    hang = Hang()
    hang.armed.set()

    async def serve() -> None:
        gateway = gateway_of(datastore)
        await gateway.start()
        asyncio.get_running_loop().call_soon(hang)
        await asyncio.sleep(0)
        await gateway.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert hang.begun.wait(60)
    wait_until(
        lambda: [each.part for each in unalive()] == ["of the gateway"], "the event loop stands"
    )
    hang.released.set()
    thread.join(60)
    assert unalive() == []
