"""shard list, moves, move, resume, rollback, diff, clean; rebalance: shards on their way between
the clusters of a datastore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from cellfeed.assembly.clusters import cluster_servers, open_clusters
from cellfeed.cli.cluster import ConfigOption, checked_config
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.clusters.model.shard_map import ranges_text
from cellfeed.store.clusters.model.shard_notes import Clusters
from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.moves.rebalance import plan_moves
from cellfeed.store.clusters.moves.shard_diff import diff_shard
from cellfeed.store.clusters.moves.underway import owners as owners_of
from cellfeed.store.clusters.moves.underway import underway
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True,
    help="See where shards are, and move them between clusters while everything runs.",
)

ShardsOption = Annotated[
    str,
    typer.Option(
        "--shard", metavar="N[,N-M…]", help="The shards: numbers and ranges, for example 3,8-15."
    ),
]
SomeShardsOption = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="N[,N-M…]", help="These shards; all that there are, when left out."
    ),
]


class _Moving(NamedTuple):
    """The clusters of a configuration, and the function that brings dictionaries to all of them."""

    clusters: Clusters
    shards: int
    complete_dictionaries: Callable[[], None]


@app.command("list")
def list_shards(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show which cluster serves which shards, as the clusters themselves say."""
    with _opened(config, run_dir) as moving:
        owners = owners_of(moving.clusters)
        names = list(moving.clusters)
    table = Table("cluster", "shards", "which", box=None)
    for name in names:
        owned = [shard for shard, owner in owners.items() if owner == name]
        if as_json:
            print_json({"cluster": name, "shards": sorted(owned)})
        table.add_row(name, str(len(owned)), ranges_text(owned) or "none")
    if not as_json:
        console.print(table)


@app.command("moves")
def moves(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show moves that are not over.

    copying: the source serves the shard; resume or rollback (the next erasure in it rolls back,
    when the mover is dead). fenced: nobody does, its puts wait. switched: the target does, and a
    shard map does not say so yet. Both end by themselves in some seconds when the mover is dead;
    resume ends them at once. kept: the move is done, and the source still keeps the rows; clean.
    """
    with _opened(config, run_dir) as moving:
        found = underway(moving.clusters)
    table = Table("shard", "from", "to", "stage", "copied", "cells", box=None)
    for each in found:
        if as_json:
            print_json(asdict(each))
        table.add_row(
            str(each.shard), each.source, each.target, each.stage, str(each.copied), str(each.cells)
        )
    if not as_json:
        console.print(table if found else "no move is under way, and nothing is kept of one")


@app.command("move")
def move(
    shard: ShardsOption,
    to: Annotated[str, typer.Option("--to", metavar="CLUSTER", help="The cluster that gets them.")],
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Move shards to another cluster, one after the other, while everything keeps running.

    Ids, times, offsets and index entries stay as they are. Each shard takes no puts for a fraction
    of a second; they wait. Killed anywhere, it is run again, or taken back with rollback. The
    source keeps the rows until `cellfeed shard clean`.
    """
    with _opened(config, run_dir) as moving:
        _move(moving, [(number, to) for number in _shards(shard, moving.shards)], as_json)


@app.command("resume")
def resume(
    shard: SomeShardsOption = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Resume moves that were cut off, each to the cluster that it was begun to; the shard map
    is written again where it is old."""
    with _opened(config, run_dir) as moving:
        wanted = set(_shards(shard, moving.shards)) if shard else None
        found = [
            each
            for each in underway(moving.clusters)
            if (each.stage != "kept" if wanted is None else each.shard in wanted)
        ]
        owners = owners_of(moving.clusters)
        _move(
            moving,
            [
                (
                    each.shard,
                    (
                        owners.get(each.shard, each.target)
                        if each.stage in ("switched", "kept")
                        else each.target
                    ),
                )
                for each in found
            ],
            as_json,
        )
    if not found and not as_json:
        console.print("no move was cut off")


@app.command("rollback")
def rollback(
    shard: ShardsOption,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Take moves back that were not switched yet: the source serves the shard again, and the copy
    is dropped."""
    with _opened(config, run_dir) as moving:
        for number in _shards(shard, moving.shards):
            found = mover.roll_back(moving.clusters, number)
            _done(
                as_json,
                {"shard": number, "serves": found.source},
                f"shard {number} is on {found.source}, as before",
            )


@app.command("diff")
def diff(
    shard: SomeShardsOption = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Compare the copies of shards on nodes: minions with their master, source and target of a
    move, the copy that is kept of a moved shard.

    By digests that the servers make of ranges of ids; the first cells that differ are named, with
    their differences. Everything may be at work meanwhile. Exits with 1 when a node differs, or
    does not answer.
    """
    equal = True
    with _opened(config, run_dir) as moving, progress_bar() as bar:
        for number in _shards(shard, moving.shards) if shard else range(moving.shards):
            task = bar.add_task(f"shard {number} (ids)", total=None)
            found = diff_shard(
                moving.clusters,
                number,
                lambda ids, task=task: bar.advance(task, ids),  # type: ignore[misc]
            )
            equal = equal and found.equal
            bar.remove_task(task)
            if as_json:
                print_json({**asdict(found), "equal": found.equal})
                continue
            for copy, ids in found.compared.items():
                differing = any(each.copy == copy for each in found.differences)
                console.print(
                    f"shard {number}: {copy} {'differs from' if differing else 'equals'}"
                    f" {found.reference} in {ids} ids",
                    highlight=False,
                )
            for line in (
                *found.differences,
                *(
                    f"shard {number}: {node} is not compared: {why}"
                    for node, why in found.silent.items()
                ),
            ):
                console.print(f"  {line}", style="red", highlight=False)
    if not equal:
        raise typer.Exit(1)


@app.command("clean")
def clean(
    shard: SomeShardsOption = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Drop the copies that clusters keep of shards that were moved away. Nobody reads them;
    afterwards it is gone.

    It is compared first, with every node that serves the shard now. While one of those lacks a
    cell, or has another one, than the kept copy in good order, nothing is dropped (exit code 3):
    `cellfeed shard diff` names it.
    """
    with _opened(config, run_dir) as moving:
        kept = [each.shard for each in underway(moving.clusters) if each.stage == "kept"]
        for number in _shards(shard, moving.shards) if shard else kept:
            name = mover.clean(moving.clusters, number, moving.complete_dictionaries)
            _done(
                as_json,
                {"shard": number, "cleaned": name},
                f"{name} keeps nothing of shard {number} any more",
            )
    if not shard and not kept and not as_json:
        console.print("nothing is kept of a shard that was moved")


def rebalance(
    drain: Annotated[
        list[str] | None,
        typer.Option(
            "--drain",
            metavar="CLUSTER",
            help="Leave no shard on this cluster; may be given several times.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the shards that would move; do nothing.")
    ] = False,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Move shards until every cluster has as many, with as few moves as that takes; or until one is
    drained.

    The shards move one after the other, as by `cellfeed shard move`. Cut off, it is run again.
    """
    with _opened(config, run_dir) as moving:
        plan = plan_moves(owners_of(moving.clusters), list(moving.clusters), drain or ())
        if dry_run:
            for each in plan:
                _done(as_json, each._asdict(), f"shard {each.shard}: {each.source} → {each.target}")
        else:
            _move(moving, [(each.shard, each.target) for each in plan], as_json)
    if not plan and not as_json:
        console.print("every shard is where it should be")


# --- parts ----------------------------------------------------------------------------------------


@contextmanager
def _opened(config: Any, run_dir: Any) -> Iterator[_Moving]:
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

        yield _Moving(clusters, checked.datastore.shards, complete)


def _move(moving: _Moving, wanted: Sequence[tuple[int, str]], as_json: bool) -> None:
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
            _done(as_json, asdict(done), text)


def _shards(text: str, shards: int) -> list[int]:
    """The shards of ``3,8-15``. Raises InvalidRequest, UnknownShard."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit()) or (
            last and not (last.isascii() and last.isdigit())
        ):
            raise InvalidRequest(f"--shard {text[:80]!r} is not of the form 3,8-15")
        found += range(check_shard(int(first), shards), check_shard(int(last or first), shards) + 1)
    return list(dict.fromkeys(found))


def _done(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        console.print(text, highlight=False)
