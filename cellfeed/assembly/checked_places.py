"""The places that the background check of a configuration reads: the files of an embedded store, or
every node of its clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from cellfeed.assembly.clusters import cluster_servers
from cellfeed.config.model import ChecksConfig, Config
from cellfeed.store.checks import BackgroundCheck
from cellfeed.store.clusters.operating.check import nodes_to_check
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.contract.piecewise import InPieces
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.piecewise import NodeInPieces
from cellfeed.store.engines.sqlite.piecewise import FilesInPieces


def background_check(
    config: Config, checks: ChecksConfig, directory: Path, state: StateTable
) -> BackgroundCheck:
    """The one of a worker."""
    places = partial(_places, config, directory)
    return BackgroundCheck(state, places, checks.every_s, checks.cells_per_s)


@contextmanager
def _places(config: Config, directory: Path, into: Findings) -> Iterator[Sequence[InPieces]]:
    given = config.datastore
    if not given.clusters:
        yield [FilesInPieces(directory / given.directory / given.name, given.name, given.shards)]
        return
    with ExitStack() as opened:
        found, layout = list[InPieces](), Layout(given.name, given.shards)
        for each in given.clusters:
            servers = opened.enter_context(closing(cluster_servers(config, each.name)))
            for place, server in nodes_to_check(servers, into):
                found.append(NodeInPieces(place, server, layout))
        yield found
