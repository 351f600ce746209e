"""A worker as a process of its own, to be killed:
``python -m tests.support.http_worker_process DIRECTORY [PORT]`` prints its port, then serves.

SIGTERM ends it in order.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.worker import run_worker


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with Datastore.open_embedded(Path(sys.argv[1])) as datastore:
        run_worker(
            datastore, port=port, stop=stop, on_started=lambda chosen: print(chosen, flush=True)
        )


if __name__ == "__main__":
    main()
