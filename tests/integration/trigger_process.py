"""A trigger worker as a process: python -m tests.integration.trigger_process STORE_DIR NAME LEASE_S SOURCE SETTINGS_JSON. SIGTERM drains."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

from bridge.coordination.in_store import StoreCoordinator
from bridge.triggers.program import load_program
from bridge.triggers.worker import DRAIN_S, run_trigger_worker
from store.datastore import Datastore


def main() -> None:
    directory, name, lease_s, source, settings = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Datastore.open_embedded(Path(directory), shards=4) as datastore:
        triggers = load_program(source, json.loads(settings))
        print("started", flush=True)
        coordinator = StoreCoordinator(datastore.state)
        run_trigger_worker(triggers, datastore, coordinator, name, stop, lease_s=float(lease_s), drain_s=json.loads(settings).get("drain_s", DRAIN_S))
    print("drained", flush=True)


if __name__ == "__main__":
    main()
