"""An exporter as a process: python -m tests.integration.export_process STORE_DIR NAME SHARDS EXPORTS_JSON COORDINATION. SIGTERM drains."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

import msgspec

from bridge.coordination.open import open_coordinator
from bridge.export.declaration import Export
from bridge.export.worker import run_exporter
from store.datastore import Datastore


def main() -> None:
    directory, name, shards, exports, coordination = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")  # to stderr
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    declared = msgspec.json.decode(exports, type=list[Export])
    with (
        Datastore.open_embedded(Path(directory), shards=int(shards)) as datastore,
        closing(open_coordinator(coordination, datastore.state)) as coordinator,
    ):
        print("started", flush=True)
        run_exporter([each.check() for each in declared], datastore, coordinator, name, stop)
    print("drained", flush=True)


if __name__ == "__main__":
    main()
