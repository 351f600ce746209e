"""cluster init, migrate, status, promote, buffer: operations on MariaDB clusters. ``rejoin`` is in
cluster_rejoin.py."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cellfeed.assembly.clusters import (
    cluster_servers,
    clusters_status,
    engine_of,
    identify_clusters,
    init_clusters,
)
from cellfeed.assembly.datastore import open_datastore
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import (
    JsonOption,
    cluster_line,
    console,
    node_advice,
    print_json,
    print_result,
)
from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.store.clusters.operating.migrate import migrate_cluster
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="Make and look after clusters of MariaDB servers.")
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="YAML configuration; the run directory's when left out."),
]
ClusterArgument = Annotated[str, typer.Argument(help="A cluster's name in the configuration.")]


@app.command("init")
def init(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Make clusters of the bare servers that the configuration names. One that is there gets the
    mode of replication of the configuration."""
    checked = checked_config(config, run_dir)
    for done in init_clusters(checked, [cluster.name for cluster in checked.datastore.clusters]):
        fields = {
            "cluster": done.cluster,
            "master": done.master,
            "minions": done.minions,
            "was_there": done.was_there,
            "semi_sync": done.semi_sync,
            "advice": done.advice,
        }
        mode = "semi-synchronously" if done.semi_sync else "asynchronously"
        minions = f", {' and '.join(done.minions)} follow {mode}" if done.minions else ", no minion"
        print_result(
            as_json,
            fields,
            f"{done.cluster}: {done.master} is"
            f" master{minions}{' (as before)' if done.was_there else ''}"
            + "".join(f"\n  {name}: {advice}" for name, advice in done.advice.items()),
        )


@app.command("migrate")
def migrate(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Bring the tables of each cluster to the schema version of this program. Doing it again
    changes nothing."""
    checked = checked_config(config, run_dir)
    for cluster in checked.datastore.clusters:
        done = migrate_cluster(cluster_servers(checked, cluster.name))
        steps = [{"version": step.version, "title": step.title} for step in done.steps]
        titles = "".join(f"\n  version {step.version}: {step.title}" for step in done.steps)
        print_result(
            as_json,
            {
                "cluster": cluster.name,
                "master": done.master,
                "version": done.version,
                "steps": steps,
            },
            f"{cluster.name}: version {done.version}{titles}",
        )
    history_id = identify_clusters(checked)
    print_result(as_json, {"history_id": history_id}, f"history {history_id}")


@app.command("status")
def status(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show each cluster's master, minions, epochs, watermarks and buffers."""
    checked = checked_config(config, run_dir)
    with open_datastore(checked, Path()) as datastore:
        clusters = clusters_status(datastore)
    asked_for = {cluster.name: cluster.semi_sync for cluster in checked.datastore.clusters}
    if as_json:
        print_json({"clusters": clusters})
        return
    for cluster in clusters:
        console.print(
            f"{cluster_line(cluster)}; epoch {cluster['epoch']}, {cluster['shards']} shards",
            highlight=False,
        )
        has_minions = any(node["role"] == "minion" for node in cluster["nodes"])
        if cluster["epoch"] >= 0 and cluster["semi_sync"] != (
            asked_for[cluster["name"]] and (has_minions or cluster["semi_sync"])
        ):
            console.print(
                f"  the configuration says `semi_sync: {str(asked_for[cluster['name']]).lower()}`:"
                " cellfeed cluster init",
                highlight=False,
            )
        if cluster["error"]:
            console.print(f"  {cluster['error']}", highlight=False)
        for advice in node_advice(cluster):
            console.print(advice, highlight=False)
        table = Table("node", "role", "state", "breaker", "cells", "behind", "", box=None)
        for node in cluster["nodes"]:
            state = "up" if node["up"] else Text("down", "red")
            table.add_row(
                node["name"],
                node["role"],
                state,
                node["breaker"],
                str(node["cells"]),
                str(node["behind"]),
                node["error"] or "",
            )
        console.print(table)
        for line in cluster["buffered"]:
            console.print(
                f"  buffers {line['cells']} cells for {line['owner']} ({line['accepted']} answered"
                f" for, {line['conflicts']} in conflict)",
                highlight=False,
            )


@app.command("promote")
def promote_minion(
    cluster: ClusterArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", help="The minion to make master; the most advanced one when left out."
        ),
    ] = None,
    give_up: Annotated[
        list[str] | None,
        typer.Option(
            "--give-up", help="A node that is gone for good, with every cell that only it had."
        ),
    ] = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Make a minion master: fence the old one, raise the leader epoch, point the others to it."""
    done = promote(cluster_servers(checked_config(config, run_dir), cluster), to, give_up or [])
    fenced = "fenced" if done.fenced else "not reached: keep it away until it has rejoined"
    old = f"; the old master {done.old_master} was {fenced}" if done.old_master else ""
    print_result(
        as_json, asdict(done), f"{cluster}: {done.master} is master in epoch {done.epoch}{old}"
    )


@app.command("buffer")
def buffer(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show buffered cells: on which cluster, for which one, since when: the ledger of cells that
    wait for their own cluster."""
    with open_datastore(checked_config(config, run_dir), Path()) as datastore:
        counts = engine_of(datastore).drain.counts()
    table = Table(
        "on cluster", "for cluster", "cells", "answered for", "in conflict", "oldest", box=None
    )
    for where, lines in counts.items():
        if isinstance(lines, str):
            _line(as_json, {"on": where, "error": lines})
            table.add_row(where, "", "", "", "", lines)
            continue
        for line in lines:
            _line(as_json, {"on": where, **asdict(line)})
            oldest = datetime.fromtimestamp(line.oldest_at_us / 1e6, UTC).isoformat(
                timespec="seconds"
            )
            table.add_row(
                where, line.owner, str(line.cells), str(line.accepted), str(line.conflicts), oldest
            )
    if not as_json:
        console.print(table if table.row_count else "nothing is buffered")


def checked_config(config: Path | None, run_dir: Path) -> Config:
    """The configuration, which must have clusters. Raises InvalidRequest."""
    checked = load_config(config or RunDir(run_dir).config)
    if not checked.datastore.clusters:
        raise InvalidRequest(
            "the configuration has no clusters (datastore.clusters); an embedded datastore has"
            " nothing to look after here"
        )
    return checked


def _line(as_json: bool, value: dict[str, Any]) -> None:
    if as_json:
        print_json(value)
