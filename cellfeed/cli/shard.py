"""shard list, moves, move, resume, rollback, diff, clean: shards on their way between the clusters
of a datastore."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from cellfeed.cli.cluster import ConfigOption
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_json, print_result, progress_bar
from cellfeed.cli.shard_moving import move_shards, opened_clusters, shards_named
from cellfeed.store.clusters.model.shard_map import ranges_text
from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.moves.shard_diff import diff_shard
from cellfeed.store.clusters.moves.underway import owners as owners_of
from cellfeed.store.clusters.moves.underway import underway

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


@app.command("list")
def list_shards(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show which cluster serves which shards, as the clusters themselves say."""
    with opened_clusters(config, run_dir) as moving:
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
    with opened_clusters(config, run_dir) as moving:
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
    with opened_clusters(config, run_dir) as moving:
        move_shards(
            moving, [(number, to) for number in shards_named(shard, moving.shards)], as_json
        )


@app.command("resume")
def resume(
    shard: SomeShardsOption = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Resume moves that were cut off, each to the cluster that it was begun to; the shard map
    is written again where it is old."""
    with opened_clusters(config, run_dir) as moving:
        wanted = set(shards_named(shard, moving.shards)) if shard else None
        found = [
            each
            for each in underway(moving.clusters)
            if (each.stage != "kept" if wanted is None else each.shard in wanted)
        ]
        owners = owners_of(moving.clusters)
        move_shards(
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
    with opened_clusters(config, run_dir) as moving:
        for number in shards_named(shard, moving.shards):
            found = mover.roll_back(moving.clusters, number)
            print_result(
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
    with opened_clusters(config, run_dir) as moving, progress_bar() as bar:
        for number in shards_named(shard, moving.shards) if shard else range(moving.shards):
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
    with opened_clusters(config, run_dir) as moving:
        kept = [each.shard for each in underway(moving.clusters) if each.stage == "kept"]
        for number in shards_named(shard, moving.shards) if shard else kept:
            name = mover.clean(moving.clusters, number, moving.complete_dictionaries)
            print_result(
                as_json,
                {"shard": number, "cleaned": name},
                f"{name} keeps nothing of shard {number} any more",
            )
    if not shard and not kept and not as_json:
        console.print("nothing is kept of a shard that was moved")
