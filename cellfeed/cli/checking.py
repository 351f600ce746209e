"""Checks a datastore as a configuration names it: the files of an embedded store, or every node of
its clusters, and the entries of its indexes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cellfeed.assembly.clusters import cluster_servers
from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.cli.instance import opened
from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.run_dir import RunDir
from cellfeed.store.backups.encryption import Identities
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.repair import BackupSource, Mender, Source, repair
from cellfeed.store.clusters.operating.check import cells_of, check_cluster
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.engines.contract.findings import Findings, OnCells
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.mend import NodeCopies, NodeMender
from cellfeed.store.engines.sqlite.instance_lock import SharedLock
from cellfeed.store.engines.sqlite.integrity import (
    check_files,
    file_history,
    integrity_of,
    last_ids,
)
from cellfeed.store.engines.sqlite.mend import SqliteMender
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import CellfeedError
from cellfeed.store.indexes.check import IndexCheck


def directory_of(config: Config, run_dir: Path) -> Path:
    """The folder of an embedded store."""
    return RunDir(run_dir).inside(config.datastore.directory) / config.datastore.name


def cells_to_check(config: Config, run_dir: Path) -> int:
    """How many cells a check looks at, about, over all nodes."""
    if not config.datastore.clusters:
        return last_ids(directory_of(config, run_dir))
    with ExitStack() as opened:
        return sum(
            cells_of(opened.enter_context(closing(cluster_servers(config, each.name))))
            for each in config.datastore.clusters
        )


def check_storage(
    config: Config, run_dir: Path, into: Findings, on_cells: OnCells = lambda _: None
) -> None:
    """Identity, integrity, gaps, checksums, counters and keys, in each file or on each node."""
    given = config.datastore
    if not given.clusters:
        check_files(directory_of(config, run_dir), given.name, given.shards, into, on_cells)
    for each in given.clusters:
        with closing(cluster_servers(config, each.name)) as servers:
            check_cluster(servers, into, on_cells)


def check_indexes(
    config: Path | None,
    run_dir: Path,
    wait_s: float,
    into: Findings,
    on_step: Callable[[str], None] = lambda _: None,
) -> None:
    """Holds the entries of every index that answers queries against the cells. An index that cannot
    be read is a finding."""
    try:
        with opened(run_dir, config) as instance:
            positions = index_positions(instance.coordinator, instance.datastore.name)
            for record in instance.datastore.indexes.catalog.all():
                if record.current is None:
                    continue
                version = instance.datastore.indexes.version(record.current)
                check, place = (
                    IndexCheck(instance.datastore.engine, version, positions, wait_s),
                    f"index {record.name}",
                )
                on_step(place)
                try:
                    for difference in check.run():
                        as_printed = difference.as_json(version)
                        into.add(
                            "index",
                            place,
                            f"{as_printed['kind']}: row {as_printed['row_key']}: found"
                            f" {as_printed['found']}, the cells say {as_printed['wanted']}",
                            difference.shard,
                        )
                except CellfeedError as error:
                    into.add("unread", place, str(error))
                if check.report.unsettled:
                    into.add(
                        "unread",
                        place,
                        f"{check.report.unsettled} rows got new cells at every look: check again",
                    )
    except CellfeedError as error:
        into.add("unread", "indexes", f"not compared with the cells: {error}")


class Backups(NamedTuple):
    """A folder of backups, and the identities that decrypt them."""

    folder: Place
    identities: Identities | None

    def source(self, given: DatastoreConfig, history_id: str) -> BackupSource:
        """Copies of cells of that history."""
        return BackupSource(self.folder, given.name, given.shards, history_id, self.identities)


def repair_storage(config: Config, run_dir: Path, backups: Backups | None, found: Findings) -> None:
    """Puts verified copies in the place of damaged and lost cells: of another node of the same
    cluster, or of a backup of the same history."""
    with ExitStack() as opened:
        if config.datastore.clusters:
            _repair_clusters(config, backups, found, opened)
        else:
            _repair_files(config, run_dir, backups, found, opened)


def _repair_files(
    config: Config, run_dir: Path, backups: Backups | None, found: Findings, opened: ExitStack
) -> None:
    given, place = config.datastore, directory_of(config, run_dir)
    opened.enter_context(closing(SharedLock(place)))
    if not (place / CELLS_FILE).exists():
        return
    mender = opened.enter_context(closing(SqliteMender(place)))
    damaged = [
        index
        for index, each in enumerate(found.found)
        if each.place == CELLS_FILE and each.kind == "integrity"
    ]
    if damaged:
        with suppress(CellfeedError):  # the next look reports damage that is left
            mender.rebuild_keys()
    if damaged and integrity_of(place / CELLS_FILE):
        for index in damaged:
            found.found[index] = replace(
                found.found[index], mended="the index of keys was built again from the cells"
            )
    sources = [backups.source(given, file_history(place))] if backups is not None else []
    repair(found, {CELLS_FILE: mender}, {CELLS_FILE: sources}, given.shards)


def _repair_clusters(
    config: Config, backups: Backups | None, found: Findings, opened: ExitStack
) -> None:
    given, layout = config.datastore, Layout(config.datastore.name, config.datastore.shards)
    menders: dict[str, Mender] = {}
    sources: dict[str, list[Source]] = {}
    for each in given.clusters:
        servers = opened.enter_context(closing(cluster_servers(config, each.name)))
        try:
            role, silent = cluster_role(servers)
        except CellfeedError:
            continue  # the check has reported why
        # Only nodes of the cluster's history that follow its master: their identity is verified.
        nodes = [node for node in (role.master, *role.minions) if node not in silent]
        for node in nodes:
            place = f"{each.name}/{node}"
            menders[place] = NodeMender(servers.server(node), layout)
            sources[place] = [
                NodeCopies(f"node {other} of cluster {each.name}", servers.server(other), layout)
                for other in nodes
                if other != node
            ]
            if backups is not None:
                sources[place].append(backups.source(given, role.history_id))
    repair(found, menders, sources, given.shards)
