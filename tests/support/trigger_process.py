"""A trigger worker as a process: python -m tests.support.trigger_process STORE_DIR NAME LEASE_S
SOURCE SETTINGS_JSON. SIGTERM drains.

The setting ``coordination`` says where the workers meet, ``entry`` the program's name in a
configuration.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.triggers.loading import load_program
from cellfeed.bridge.triggers.worker import DRAIN_S, run_trigger_worker
from cellfeed.store.datastore import Datastore


def main() -> None:
    directory, name, lease_s, source, given = sys.argv[1:]
    settings = json.loads(given)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")  # to stderr
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Datastore.open_embedded(Path(directory), shards=4) as datastore:
        triggers = load_program(source, settings, entry=settings.get("entry", ""))
        print("started", flush=True)
        with closing(
            open_coordinator(settings.get("coordination", "store"), datastore.state)
        ) as coordinator:
            run_trigger_worker(
                triggers,
                datastore,
                coordinator,
                name,
                stop,
                lease_s=float(lease_s),
                drain_s=settings.get("drain_s", DRAIN_S),
            )
    print("drained", flush=True)


if __name__ == "__main__":
    main()
