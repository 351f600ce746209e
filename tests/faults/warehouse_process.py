"""A warehouse loader as a process of its own, to be killed: ``python -m
tests.faults.warehouse_process BOOTSTRAP TOPIC GROUP TABLE ENDS_JSON``.

Loads up to the offsets of ENDS_JSON, or until SIGTERM when that is ``null``; prints its results as
JSON.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import sys
import threading
from pathlib import Path

from cellfeed.consumers.warehouse.loader import run_warehouse_loader
from cellfeed.consumers.warehouse.loader_progress import FlushPolicy

FLUSH = FlushPolicy(rows=20, age_s=0.3)


def main() -> None:
    bootstrap, topic, group, table, ends_json = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ends = json.loads(ends_json)
    until = None if ends is None else {int(shard): end for shard, end in ends.items()}
    progress = run_warehouse_loader(
        bootstrap, topic, group, Path(table), stop, until_offsets=until, flush=FLUSH
    )
    print(json.dumps(dataclasses.asdict(progress)), flush=True)


if __name__ == "__main__":
    main()
