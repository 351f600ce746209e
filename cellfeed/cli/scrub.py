"""scrub: removes every byte of erased cells from the files."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

import typer

from cellfeed.assembly.clusters import cluster_servers
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, config_of
from cellfeed.cli.output import JsonOption, console, errors, print_json
from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.store.clusters.operating.scrub import ScrubbedServer, scrub_cluster
from cellfeed.store.engines.sqlite.scrub import scrub_files


def scrub(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Write the files of a datastore again, without the bytes of erased and trimmed cells.

    Embedded: the instance has to be down. It takes the room of the largest file once more, and some
    seconds a gigabyte.

    Clusters of MariaDB: while everything is at work, one server after the other: tables, undo logs,
    redo log, binary and relay logs. Every node has to be there, since binary logs are deleted; the
    room of the largest table is taken once more. The command names the files it could not write
    again, with a remedy each; the exit code is 1 then.

    It may be killed, and run again.
    """
    settings = config_of(run_dir, config)
    if settings.datastore.clusters:
        _scrub_clusters(settings, as_json)
        return
    with errors.status("writing the files again"):
        scrubbed = scrub_files(
            RunDir(run_dir).inside(settings.datastore.directory) / settings.datastore.name
        )
    if as_json:
        print_json({"scrubbed": [str(path) for path in scrubbed]})
    else:
        for path in scrubbed:
            console.print(f"{path} is written again", highlight=False)


def _scrub_clusters(settings: Config, as_json: bool) -> None:
    done: list[ScrubbedServer] = []
    with errors.status("scrubbing") as status:
        for cluster in settings.datastore.clusters:
            with closing(cluster_servers(settings, cluster.name)) as servers:
                done += scrub_cluster(servers, status.update)
    for server in done:
        if as_json:
            print_json(asdict(server))
            continue
        console.print(
            f"{server.node}: {server.tables} tables and the logs are written again,"
            f" {server.checksums} cells have got a checksum",
            highlight=False,
        )
        for line in server.left:
            console.print(f"  still there: {line}", style="red", highlight=False)
    if any(server.left for server in done):
        raise typer.Exit(1)
