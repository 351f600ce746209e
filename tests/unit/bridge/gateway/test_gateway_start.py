"""A gateway that cannot start leaves nothing behind: no port, no thread, no claim."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, InvalidRequest, StorageUnavailable
from tests.support.free_ports import free_port


def start_fails(datastore: Datastore, config: GatewayConfig, error: type[CellfeedError]) -> None:
    threads = set(threading.enumerate())

    async def start() -> None:
        gateway = Gateway(datastore, StoreCoordinator(datastore.state), config)
        with pytest.raises(error):
            await gateway.start()

    asyncio.run(start())
    assert set(threading.enumerate()) <= threads
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", config.port))
        again.listen()


def test_a_gateway_whose_registry_finds_its_port_taken_gives_back_its_own(
    datastore: Datastore, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = GatewayConfig(
            port=free_port(),
            registry_port=other.getsockname()[1],
            blocks_directory=tmp_path / "blocks",
            block_files_bytes_max=1_000_000,
        )
        start_fails(datastore, config, InvalidRequest)


def test_a_gateway_whose_coordination_is_away_at_its_start_gives_back_its_ports(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailable("the state is away")

    monkeypatch.setattr("cellfeed.bridge.gateway.server.register", away)
    config = GatewayConfig(port=free_port(), registry_port=0)
    start_fails(datastore, config, StorageUnavailable)
    monkeypatch.undo()
    start_succeeds(datastore, config)


def start_succeeds(datastore: Datastore, config: GatewayConfig) -> None:
    async def start() -> None:
        gateway = Gateway(datastore, StoreCoordinator(datastore.state), config)
        await gateway.start()
        await gateway.stop()

    asyncio.run(start())
