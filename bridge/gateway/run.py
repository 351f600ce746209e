"""A gateway as a process: it serves until it is stopped, or until another process has its name."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.store.datastore import Datastore
from cellfeed.store.gc_tuning import collect_seldom


def run_gateway(
    datastore: Datastore,
    coordinator: Coordinator,
    config: GatewayConfig,
    stop: threading.Event,
    on_started: Callable[[int, int], None] | None = None,
) -> None:
    """Serves until ``stop`` is set; blocks. In the main thread SIGHUP has it take replaced
    certificates; elsewhere signals are left to the program. ``on_started`` gets both ports. Raises
    ProtectData for an address beyond loopback, StaleWriter when another process has taken this
    gateway's name.
    """

    async def serve() -> None:
        gateway = Gateway(datastore, coordinator, config)
        await gateway.start()
        superseded = gateway.superseded
        if superseded is None:
            raise RuntimeError("a gateway that was started knows of the others")
        superseded.add_done_callback(lambda _: stop.set())
        collect_seldom()
        if threading.current_thread() is threading.main_thread():  # others get no signals
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, gateway.refresh_certificates
            )
        if on_started is not None:
            on_started(gateway.port, gateway.registry_port)
        await asyncio.get_running_loop().run_in_executor(None, stop.wait)
        await gateway.stop()
        if superseded.done() and not superseded.cancelled():
            raise superseded.result()

    try:
        import uvloop  # CPython alone has it
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())
