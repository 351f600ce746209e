"""The datastore that a configuration names: SQLite files in the run directory, or clusters of
MariaDB servers; with the coordination where both are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cellfeed.assembly.clusters import cluster_servers, open_clusters, shard_map
from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.typed import rejected_cells
from cellfeed.config.model import Config
from cellfeed.store.backups.into_clusters import ClusterTarget
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.restore_target import Target
from cellfeed.store.clusters.model.shard_map import first_map, read_map
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.recovery import Place
from cellfeed.store.engines.contract.rewritable import RewritableEngine
from cellfeed.store.engines.mysql.connections import (
    has_database,
)
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.migrations import check_schema
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.instance_lock import SharedLock
from cellfeed.store.engines.sqlite.open import open_cells
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import StorageUnavailable


def open_datastore(config: Config, directory: Path) -> Datastore:
    """The datastore, in process; SQLite files lie below ``directory``. Raises StorageUnavailable,
    ProtectData."""
    if not config.datastore.clusters:
        datastore = Datastore.open_embedded(
            directory / config.datastore.directory, config.datastore.name, config.datastore.shards
        )
    else:
        datastore = Datastore(open_clusters(config.datastore))
    datastore.when_erased(ParkedCells(datastore.state).forget_row)
    datastore.when_erased(partial(rejected_cells.forget_row, datastore.state))
    return datastore


class Opened(NamedTuple):
    """A configuration with its datastore and coordination, opened by this process itself: other
    processes of the instance need not run."""

    config: Config
    datastore: Datastore
    coordinator: Coordinator


@contextmanager
def opened(config: Config, directory: Path) -> Iterator[Opened]:
    """Opens the datastore and the coordination of a configuration, and closes them at the end.
    SQLite files lie below ``directory``. Raises StorageUnavailable, ProtectData."""
    with (
        open_datastore(config, directory) as datastore,
        closing(
            open_coordinator(config.coordination, datastore.state, datastore.history)
        ) as coordinator,
    ):
        yield Opened(config, datastore, coordinator)


@contextmanager
def dictionary_places(
    config: Config, directory: Path
) -> Iterator[tuple[list[Place], dict[str, str]]]:
    """The dictionaries of every storage node, without opening the datastore, which may be refused
    for them; and why the other nodes do not answer. Raises ProtectData for storage of another shape
    or schema version."""
    places: list[Place] = []
    silent: dict[str, str] = {}
    with ExitStack() as opened:
        if not config.datastore.clusters:
            place = directory / config.datastore.directory / config.datastore.name
            opened.callback(SharedLock(place).close)
            file = open_cells(place, config.datastore.name, config.datastore.shards)
            opened.callback(file.close)
            places.append(Place("", CELLS_FILE, SqliteDictionaries(file)))
        for cluster in config.datastore.clusters:
            servers = cluster_servers(config, cluster.name)
            opened.callback(servers.close)
            for node, server in servers.servers.items():
                try:
                    if not has_database(server, servers.meta):
                        silent[node] = "it holds nothing of the datastore"
                        continue
                except StorageUnavailable as error:
                    silent[node] = str(error)
                    continue
                check_schema(server, Layout(config.datastore.name, config.datastore.shards))
                places.append(Place(cluster.name, node, MySqlDictionaries(server, servers.meta)))
        yield places, silent


def shard_owners(datastore: Datastore) -> dict[str, list[tuple[int, int]]]:
    """Which cluster has which shards, for a backup; empty for an embedded datastore."""
    found = read_map(datastore.state) if isinstance(datastore.engine, ClusteredEngine) else None
    return found.owners if found is not None else {}


def restore_target(
    config: Config, directory: Path, owners: Mapping[str, Sequence[tuple[int, int]]]
) -> AbstractContextManager[Target]:
    """Where a backup is restored into, to be used as a context. ``owners``: the backup's shard map,
    which the clusters get where the configuration names the same ones and does not divide the
    shards otherwise. Raises InvalidRequest."""
    given = config.datastore
    if not given.clusters:
        return SqliteTarget(directory / given.directory / given.name, given.name, given.shards)
    divided = shard_map(config)
    if all(cluster.shards is None for cluster in given.clusters) and set(owners) == {
        cluster.name for cluster in given.clusters
    }:
        divided = first_map(
            given.name, given.shards, {name: list(ranges) for name, ranges in owners.items()}
        )
    return ClusterTarget(
        [cluster_servers(config, cluster.name) for cluster in given.clusters], divided
    )


def rewritable_engine(datastore: Datastore) -> RewritableEngine:
    """The engine of a datastore that a configuration names, to store bodies in another encoding."""
    if not isinstance(datastore.engine, SqliteEngine | ClusteredEngine):
        raise TypeError(f"{type(datastore.engine).__name__} is opened by no configuration")
    return datastore.engine
