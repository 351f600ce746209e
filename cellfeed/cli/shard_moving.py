"""Verbs that move shards share this: the clusters, the named shards, and moving one after the
other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

from cellfeed.assembly.clusters import cluster_servers, open_clusters
from cellfeed.cli.cluster import checked_config
from cellfeed.cli.output import print_result, progress_bar
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.clusters.model.shard_notes import Clusters
from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.errors import InvalidRequest


class Moving(NamedTuple):
    """The clusters of a configuration, and the function that brings dictionaries to all of them."""

    clusters: Clusters
    shards: int
    complete_dictionaries: Callable[[], None]


@contextmanager
def opened_clusters(config: Any, run_dir: Any) -> Iterator[Moving]:
    """The clusters of the configuration, closed at the end. Raises InvalidRequest without any."""
    checked = checked_config(config, run_dir)
    clusters = {
        each.name: cluster_servers(checked, each.name) for each in checked.datastore.clusters
    }
    with ExitStack() as opened:
        for servers in clusters.values():
            opened.callback(servers.close)
        engines: list[ClusteredEngine] = []

        def complete() -> None:
            if not engines:
                engines.append(opened.enter_context(closing(open_clusters(checked.datastore))))
            engines[0].dictionaries.complete()

        yield Moving(clusters, checked.datastore.shards, complete)


def move_shards(moving: Moving, wanted: Sequence[tuple[int, str]], as_json: bool) -> None:
    """Moves each shard to its cluster, and prints each move."""
    with progress_bar() as bar:
        for number, to in wanted:
            task = bar.add_task(f"shard {number} to {to} (cells)", total=None)
            done = mover.move_shard(
                moving.clusters,
                number,
                to,
                moving.complete_dictionaries,
                lambda cells, task=task: bar.advance(task, cells),  # type: ignore[misc]
            )
            fence = "" if done.fence_s is None else f", no puts for {done.fence_s:.2f} s"
            text = (
                f"shard {number} was on {to} already"
                if done.was_there
                else f"shard {number}: {done.source} → {to}, {done.cells} cells copied{fence}"
            )
            print_result(as_json, asdict(done), text)


def shards_named(text: str, shards: int) -> list[int]:
    """The shards of ``3,8-15``. Raises InvalidRequest, UnknownShard."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit()) or (
            last and not (last.isascii() and last.isdigit())
        ):
            raise InvalidRequest(f"--shard {text[:80]!r} is not of the form 3,8-15")
        begin, end = check_shard(int(first), shards), check_shard(int(last or first), shards)
        if end < begin:
            raise InvalidRequest(
                f"--shard {begin}-{end} names no shard: a range begins with its lowest number"
            )
        found += range(begin, end + 1)
    return list(dict.fromkeys(found))
