"""An index that an index worker keeps while a test runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.bridge.outlets.handled_to import handled_to
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from cellfeed.store.indexes.check import IndexCheck
from cellfeed.store.indexes.definition import IndexDefinition
from cellfeed.store.indexes.version import IndexVersion
from tests.support.waiting import wait_until


@contextmanager
def index_worker(
    datastore: Datastore, name: str = "keeper", coordination: str = "store"
) -> Iterator[Coordinator]:
    """A worker for all indexes of the datastore, in this process. ``coordination`` as a
    configuration says it."""
    stop = threading.Event()
    with closing(open_coordinator(coordination, datastore.state)) as coordinator:
        datastore.indexes.positions = index_positions(coordinator, datastore.name)
        datastore.indexes.settled.handled_to = handled_to(datastore, coordinator)
        thread = threading.Thread(
            target=IndexWorker(datastore, coordinator, name, lease_s=2.0).run, args=(stop,)
        )
        thread.start()
        try:
            yield coordinator
        finally:
            stop.set()
            thread.join()


def made_index(datastore: Datastore, definition: IndexDefinition) -> IndexVersion:
    """Makes an index, and waits until a worker has built it."""
    record = datastore.indexes.catalog.create(definition)
    built(datastore, definition.table, record.number)
    return datastore.indexes.version(record)


def differences(datastore: Datastore, version: IndexVersion) -> list[str]:
    """I18, once nobody puts any more: waits until the index has come to the ends of the logs; the
    entries that are missing, stale or invented then."""
    caught_up(datastore, version)
    assert datastore.indexes.positions is not None
    check = IndexCheck(datastore.engine, version, datastore.indexes.positions)
    found = [
        f"index {version.definition.table}: {difference.as_json(version)}"
        for difference in check.run()
    ]
    if check.report.unsettled or not check.report.entries:
        found.append(
            f"index {version.definition.table}: {check.report.entries} entries,"
            f" {check.report.unsettled} rows do not stand still"
        )
    return found


def built(datastore: Datastore, name: str, number: int) -> None:
    """Waits until queries are answered from this version."""
    wait_until(
        lambda: (
            (now := datastore.indexes.catalog.get(name).current) is not None
            and now.number == number
        ),
        f"{name} v{number} is built",
        100,
    )


def caught_up(datastore: Datastore, version: IndexVersion) -> None:
    """Waits until the index has come to the ends of the logs."""
    positions = datastore.indexes.positions
    assert positions is not None

    def reached() -> bool:
        # After a fault a node is left alone for a moment.
        with suppress(Unavailable):
            ends = {shard: head.watermark for shard, head in datastore.heads().items()}
            found = positions(version.group)
            return all(found.get(shard, 0) >= end for shard, end in ends.items())
        return False

    wait_until(reached, "the index has caught up", 100)
