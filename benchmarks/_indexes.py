"""A datastore with an index of the article's shape, embedded or on a MariaDB server, and an index
worker in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID, uuid5

from benchmarks._mariadb import mariadb
from benchmarks._processes import Process
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.version import IndexVersion
from tests.support.waiting import wait_until

SHARDS: Final = 16
DRIVERS: Final = 1_000
_NAMESPACE: Final = UUID("5d1c3e0e-55a4-4b5e-9a55-7b7d2f1f0a03")
DEFINITION: Final = parse_definition(
    """
table: trips_by_driver
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: driver, type: UUID}, {field: city, type: string}, {field: at, type: datetime}]
"""
)
STORES: Final = ("embedded", "MariaDB")
BUILD_TIMEOUT_S: Final = 600.0


@contextmanager
def place_of(store: str) -> Iterator[str]:
    """Where the datastore is: a folder, or a server's address."""
    if store == "embedded":
        with tempfile.TemporaryDirectory() as directory:
            yield directory
    else:
        with mariadb() as server:
            yield server.url


def open_store(place: str) -> Datastore:
    """The datastore there; made when it is not."""
    if place.startswith("mysql://"):
        return Datastore(MySqlEngine(MySqlServer(place), "trips", SHARDS, create=True))
    return Datastore.open_embedded(Path(place), "trips", SHARDS)


def driver(number: int) -> str:
    """The driver of a trip."""
    return str(uuid5(_NAMESPACE, f"driver {number % DRIVERS}"))


def trip(number: int) -> tuple[UUID, str, int, dict[str, Any]]:
    """A cell to put."""
    day, second = number // DRIVERS % 28 + 1, number % 86_400
    at = f"2019-03-{day:02d}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
    return (
        uuid5(_NAMESPACE, f"trip {number}"),
        "BASE",
        1,
        {
            "driver": driver(number),
            "city": f"city {number % 7}",
            "at": at,
            "total_cents": number % 9_000,
        },
    )


def fill(store: Datastore, count: int) -> None:
    """Puts so many trips."""
    for start in range(0, count, 5_000):
        store.put_new_cells(
            [new_cell(*trip(number)) for number in range(start, min(count, start + 5_000))]
        )


def create(store: Datastore) -> IndexVersion:
    """Takes the index down; a worker builds it."""
    record = store.indexes.catalog.create(DEFINITION)
    version = store.indexes.version(record)
    store.engine.indexes.create(version.table)
    return version


def wait_until_current(store: Datastore) -> None:
    """Until the index answers."""
    wait_until(
        lambda: store.indexes.catalog.get(DEFINITION.table).current is not None,
        "the index is built",
        BUILD_TIMEOUT_S,
    )


def index_workers(place: str, count: int = 1) -> Sequence[Process]:
    """Processes that keep the index; to be entered."""
    return [Process(_keep, place=place, name=f"index-{number}") for number in range(count)]


def _keep(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    with (
        open_store(settings["place"]) as store,
        closing(StoreCoordinator(store.state)) as coordinator,
    ):
        connection.send("ready")
        IndexWorker(store, coordinator, settings["name"]).run(cast("Any", stop))
