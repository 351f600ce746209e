"""A gateway as a process of its own, to be killed:
``python -m tests.support.gateway_process STORE_DIR PORT SETTINGS_JSON``. The settings are those of
``GatewayConfig``, ``shards`` (16 without), and ``coordination``: ``store``, as without, or the URL
of a ZooKeeper; a listener without ``mechanisms`` has all of them; ``registry``: the
TLS files of a registry that asks for credentials.

Prints ``{"port", "registry_port"}`` when it serves. SIGTERM ends it in order.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

import msgspec

from cellfeed.bridge.coordination.open import IN_STORE, open_coordinator
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.run import run_gateway
from cellfeed.bridge.gateway.security.listeners import Listener
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.listening import HttpListener
from cellfeed.store.security.certificates import TlsFiles
from cellfeed.store.security.scram import MECHANISMS


def _registry(tls: dict[str, str] | None) -> HttpListener | None:
    """Over TLS with these files, and with credentials."""
    return (
        None
        if tls is None
        else HttpListener(tls=TlsFiles(tls["certificate"], tls["key"]), authentication=True)
    )


def main() -> None:
    directory, port, settings = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    given = json.loads(settings)
    coordination = given.pop("coordination", IN_STORE)
    shards = given.pop("shards", 16)
    registry = _registry(given.pop("registry", None))
    listeners = tuple(
        Listener(**{**each, "mechanisms": tuple(each.get("mechanisms", MECHANISMS))})
        for each in given.pop("listeners", ())
    )
    topics = tuple(msgspec.convert(given.pop("topics", []), list[VirtualTopic]))
    given["blocks_directory"] = Path(given.get("blocks_directory", "blocks"))
    config = GatewayConfig(
        port=int(port),
        registry_port=0,
        listeners=listeners,
        topics=topics,
        registry=registry,
        **given,
    )
    with (
        Datastore.open_embedded(Path(directory), shards=shards) as datastore,
        closing(open_coordinator(coordination, datastore.state)) as coordinator,
    ):
        run_gateway(
            datastore,
            coordinator,
            config,
            stop,
            lambda bound, registry: print(
                json.dumps({"port": bound, "registry_port": registry}), flush=True
            ),
        )


if __name__ == "__main__":
    main()
