"""Datastores of taxi cells, embedded and on a MariaDB server, that the benchmarks of backups and of
restores work on."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.put_http import taxi_cells
from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells import canonical_json
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import SAMPLES_MIN, SAMPLES_WANTED, Sample, train
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import Unavailable
from tests.support.local_mariadb import MariaDB

SHARDS = 16
BATCH = 5_000


@contextmanager
def folder() -> Iterator[Path]:
    """Removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="cellfeed-backups-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def embedded(directory: Path, cells: int) -> Iterator[Datastore]:
    """Trips under a dictionary, as a worker stores them."""
    with Datastore.open_embedded(directory, "trips", SHARDS) as store:
        _fill(store, cells)
        yield store


@contextmanager
def clustered(server: MariaDB, cells: int) -> Iterator[Datastore]:
    """The same on one server."""
    with _servers(server) as servers:
        init_cluster(servers, even_map("trips", SHARDS, ["c1"]))
    nodes = {
        "c1": {
            "a": lambda timeout_s: MySqlEngine(MySqlServer(server.url, timeout_s), "trips", SHARDS)
        }
    }
    with Datastore(ClusteredEngine("trips", SHARDS, nodes)) as store:
        _fill(store, cells)
        yield store


@contextmanager
def _servers(server: MariaDB) -> Iterator[ClusterServers]:
    servers = servers_of(server)
    try:
        yield servers
    finally:
        servers.close()


def servers_of(server: MariaDB) -> ClusterServers:
    """The server as a cluster of one node."""
    return ClusterServers("c1", "trips", SHARDS, {"a": MySqlServer(server.url)}, semi_sync=False)


def backed_up(store: Datastore, directory: Path) -> Backup:
    return create(BackupFolder(directory), Source(store.engine, belongs))


def measured(what: Callable[[], object]) -> float:
    """Seconds that it took."""
    started_s = time.perf_counter()
    what()
    return time.perf_counter() - started_s


def dump(server: MariaDB, file: Path) -> None:
    """All databases of the datastore with ``mariadb-dump``, in one transaction, binary values as
    digits."""
    names = ["trips_meta", *(f"trips_{shard:04d}" for shard in range(SHARDS))]
    with file.open("wb") as target:
        command = [
            "mariadb-dump",
            *_address(server),
            "--single-transaction",
            "--hex-blob",
            "--skip-tz-utc",
            "--databases",
            *names,
        ]
        subprocess.run(command, stdout=target, check=True)


def load(server: MariaDB, file: Path) -> None:
    """The rows that :func:`dump` wrote, with the ``mariadb`` client."""
    with file.open("rb") as source:
        subprocess.run(["mariadb", *_address(server)], stdin=source, check=True)


def _address(server: MariaDB) -> list[str]:
    if shutil.which("mariadb-dump") is None or shutil.which("mariadb") is None:
        raise Unavailable("mariadb-dump and mariadb are needed: apt-get install mariadb-client")
    return ["--no-defaults", "--host=127.0.0.1", f"--port={server.port}", "--user=root"]


def _fill(store: Datastore, cells: int) -> None:
    trips = taxi_cells(cells)
    if cells >= SAMPLES_MIN:
        samples = [
            Sample(row_key.bytes, canonical_json.canonical(body))
            for row_key, _, _, body in trips[:SAMPLES_WANTED]
        ]
        publish(store.engine.dictionaries, train("BASE", samples).dictionary, 0)
    for start in range(0, cells, BATCH):
        store.put_cells(trips[start : start + BATCH])
