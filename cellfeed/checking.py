"""Checks a datastore as a configuration names it: the files of an embedded store, or every node of its clusters, and the entries of its indexes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from bridge.indexes.groups import index_positions
from cellfeed import storage
from cellfeed.cli.instance import opened
from cellfeed.config import Config
from cellfeed.run_dir import RunDir
from store.checks.findings import Findings, OnCells
from store.clusters.check import cells_of, check_cluster
from store.engines.sqlite_integrity import check_files, last_ids
from store.errors import CellfeedError
from store.indexes.check import IndexCheck


def directory_of(config: Config, run_dir: Path) -> Path:
    """The folder of an embedded store."""
    return RunDir(run_dir).inside(config.datastore.directory) / config.datastore.name


def cells_to_check(config: Config, run_dir: Path) -> int:
    """How many cells a check looks at, about, over all nodes."""
    if not config.datastore.clusters:
        return last_ids(directory_of(config, run_dir))
    with ExitStack() as held:
        return sum(cells_of(held.enter_context(closing(storage.cluster_servers(config, each.name)))) for each in config.datastore.clusters)


def check_storage(config: Config, run_dir: Path, into: Findings, on_cells: OnCells = lambda _: None) -> None:
    """Identity, integrity, gaps, checksums, counters and keys, in each file or on each node."""
    given = config.datastore
    if not given.clusters:
        check_files(directory_of(config, run_dir), given.name, given.shards, into, on_cells)
    for each in given.clusters:
        with closing(storage.cluster_servers(config, each.name)) as servers:
            check_cluster(servers, into, on_cells)


def check_indexes(config: Path | None, run_dir: Path, wait_s: float, into: Findings, on_step: Callable[[str], None] = lambda _: None) -> None:
    """Holds the entries of every index that answers queries against the cells. What cannot be looked at is a finding."""
    try:
        with opened(run_dir, config) as instance:
            positions = index_positions(instance.coordinator, instance.datastore.name)
            for record in instance.datastore.indexes.catalog.all():
                if record.current is None:
                    continue
                version = instance.datastore.indexes.version(record.current)
                check, place = IndexCheck(instance.datastore.engine, version, positions, wait_s), f"index {record.name}"
                on_step(place)
                try:
                    for difference in check.run():
                        told = difference.told(version)
                        into.add(
                            "index", place, f"{told['kind']}: row {told['row_key']}: found {told['found']}, the cells say {told['wanted']}", difference.shard
                        )
                except CellfeedError as error:
                    into.add("unread", place, str(error))
                if check.report.unsettled:
                    into.add("unread", place, f"{check.report.unsettled} rows got new cells at every look: check again")
    except CellfeedError as error:
        into.add("unread", "indexes", f"not compared with the cells: {error}")
