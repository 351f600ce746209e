"""rebalance: shards move until every cluster has as many."""

from __future__ import annotations

from typing import Annotated

import typer

from cellfeed.cli.cluster import ConfigOption
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_result
from cellfeed.cli.shard_moving import move_shards, opened_clusters
from cellfeed.store.clusters.moves.rebalance import plan_moves
from cellfeed.store.clusters.moves.underway import owners as owners_of


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
    with opened_clusters(config, run_dir) as moving:
        plan = plan_moves(owners_of(moving.clusters), list(moving.clusters), drain or ())
        if dry_run:
            for each in plan:
                print_result(
                    as_json, each._asdict(), f"shard {each.shard}: {each.source} → {each.target}"
                )
        else:
            move_shards(moving, [(each.shard, each.target) for each in plan], as_json)
    if not plan and not as_json:
        console.print("every shard is where it should be")
