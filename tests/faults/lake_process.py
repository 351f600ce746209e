"""A lake's loader as a process of its own, to be killed: ``python -m tests.faults.lake_process
BOOTSTRAP TOPIC GROUP FORMAT FOLDER ENDS_JSON``.

Loads up to the offsets of ENDS_JSON, or until SIGTERM when that is ``null``; prints its results as
JSON.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from cellfeed.consumers.lake import reading
from cellfeed.consumers.lake.loader import run_lake_loader
from cellfeed.consumers.lake.open_table import Place
from cellfeed.consumers.lake.progress import CommitPolicy

POLICY = CommitPolicy(rows=150, age_s=0.3)


def main() -> None:
    bootstrap, topic, group, kind, folder, ends_json = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ends = json.loads(ends_json)
    place = Place(
        format="delta" if kind == "delta" else "iceberg",
        storage=Path(folder),
        rest_uri=os.environ.get("CELLFEED_TEST_REST"),
    )
    reading.CONSUME_RECORDS = 50  # type: ignore[misc]
    progress = run_lake_loader(
        bootstrap,
        topic,
        group,
        place,
        stop,
        until_offsets=None if ends is None else {int(shard): end for shard, end in ends.items()},
        policy=POLICY,
    )
    print(json.dumps(dataclasses.asdict(progress)), flush=True)


if __name__ == "__main__":
    main()
