"""An index worker killed with kill -9 at each place where it can be, while cells come; another one
continues, and the index equals the cells (I18)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.check import IndexCheck
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.kept_index import caught_up, index_worker

pytestmark = pytest.mark.integration

DEFINITION = parse_definition("""
table: by_driver
datastore: trips
column_defs: [{column_name: BASE, fields: [{field: driver, type: string}, {field: n, type: int}]}]
""")
WORKER = """
import sys, threading
from contextlib import closing
from pathlib import Path
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.store.datastore import Datastore

with Datastore.open_embedded(Path(sys.argv[1])) as datastore:
    with closing(StoreCoordinator(datastore.state)) as coordinator:
        IndexWorker(datastore, coordinator, "doomed", lease_s=1.0).run(threading.Event())
"""
PLACES = (
    "index.before_entries@2",
    "sqlite.index.before_commit@2",
    "sqlite.index.after_commit@2",
    "index.before_tombstones@1",
    "index.after_tombstones@1",
    "trigger.before_save@1",
    "trigger.after_save@1",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_index_worker_leaves_nothing_that_the_next_one_does_not_mend(
    tmp_path: Path, place: str
) -> None:
    with Datastore.open_embedded(tmp_path) as datastore:
        datastore.indexes.catalog.create(DEFINITION)
        for number in range(4):
            put(datastore, number)
        name, _, at_pass = place.partition("@")
        environment = {**os.environ, "CELLFEED_FAILPOINTS": f"{name}=kill@{at_pass}"}
        done = subprocess.run(
            [sys.executable, "-c", WORKER, str(tmp_path)],
            env=environment,
            timeout=60,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        put(datastore, 4)
        with index_worker(datastore) as coordinator:
            version = datastore.indexes.version(
                datastore.indexes.catalog.get("by_driver").versions[0]
            )
            caught_up(datastore, version)
            check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
            assert list(check.run()) == []
            assert check.report.entries == 30


def put(datastore: Datastore, number: int) -> None:
    """Each row once more, every other one with another driver."""
    datastore.put_cells(
        [
            (
                UUID(int=row),
                "BASE",
                number,
                {"driver": f"driver {(row + number * (row % 2)) % 5}", "n": number},
            )
            for row in range(30)
        ]
    )
