"""A gateway as a process of its own, to be killed: ``python -m tests.clients.gateway_process STORE_DIR PORT SETTINGS_JSON``.

Prints ``{"port", "registry_port"}`` when it serves. SIGTERM ends it in order.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from pathlib import Path

from bridge.coordination.in_store import StoreCoordinator
from bridge.gateway.server import GatewayConfig, run_gateway
from store.datastore import Datastore


def main() -> None:
    directory, port, settings = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = GatewayConfig(port=int(port), registry_port=0, **json.loads(settings))
    with Datastore.open_embedded(Path(directory)) as datastore:
        run_gateway(
            datastore,
            StoreCoordinator(datastore.state),
            config,
            stop,
            lambda bound, registry: print(json.dumps({"port": bound, "registry_port": registry}), flush=True),
        )


if __name__ == "__main__":
    main()
