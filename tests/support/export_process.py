"""An exporter as a process: python -m tests.support.export_process STORE NAME SHARDS
EXPORTS_JSON COORDINATION LOOK_S. SIGTERM drains.

STORE: the directory of an embedded one, or the URL of a MariaDB server that is a cluster by itself.
LOOK_S: the least time that a look at the logs takes, in seconds.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.export.batches import Batch
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.read_ahead import ReadAhead
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import HeadChanges
from tests.support.mariadb_cluster import DATASTORE, LONE_CLUSTER, LONE_NODE, node_opener


def open_store(place: str, shards: int) -> Datastore:
    """See the module: STORE."""
    if not place.startswith("mysql://"):
        return Datastore.open_embedded(Path(place), shards=shards)
    return Datastore(
        ClusteredEngine(DATASTORE, shards, {LONE_CLUSTER: {LONE_NODE: node_opener(place, shards)}})
    )


LOOKS_MEANWHILE = "looks for the next cells while a transaction is under way"
"""Said by an exporter with slow looks, each time it does."""


def look_slowly(datastore: Datastore, look_s: float) -> None:
    """Has each of its looks take so many seconds more, as of servers: then the next cells are
    looked for while a transaction is under way."""
    look = datastore.engine.heads_since

    def slow(mark: object | None) -> HeadChanges:
        time.sleep(look_s)
        return look(mark)

    datastore.engine.heads_since = slow  # type: ignore[method-assign]


def log_looks_meanwhile() -> None:
    """Has the exporter say so in its log."""
    look_and_read = ReadAhead.look_and_read

    def logged(self: ReadAhead, locations: Mapping[int, int]) -> Batch | None:
        logging.info(LOOKS_MEANWHILE)
        return look_and_read(self, locations)

    ReadAhead.look_and_read = logged  # type: ignore[method-assign]


def main() -> None:
    place, name, shards, exports, coordination, look_s = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")  # to stderr
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    declared = msgspec.json.decode(exports, type=list[Export])
    with (
        open_store(place, int(shards)) as datastore,
        closing(open_coordinator(coordination, datastore.state)) as coordinator,
    ):
        if float(look_s):
            look_slowly(datastore, float(look_s))
            log_looks_meanwhile()
        print("started", flush=True)
        run_exporter([each.check() for each in declared], datastore, coordinator, name, stop)
    print("drained", flush=True)


if __name__ == "__main__":
    main()
