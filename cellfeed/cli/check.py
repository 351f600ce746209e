"""check: a datastore against itself, in every file or on every node."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.text import Text

from cellfeed.cli.checking import (
    Backups,
    cells_to_check,
    check_indexes,
    check_storage,
    repair_storage,
)
from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    ConfigOption,
    IdentityOption,
    RunDirOption,
    config_of,
)
from cellfeed.cli.output import JsonOption, console, errors, print_json, progress_bar
from cellfeed.store.backups.encryption import identities_of
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.errors import InvalidRequest


def check(
    indexes: Annotated[
        bool, typer.Option(help="Hold the entries of indexes against the cells as well.")
    ] = True,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Put verified copies in the place of damaged and lost cells."
        ),
    ] = False,
    backups: Annotated[
        str | None,
        typer.Option(
            "--backups",
            metavar="DIR",
            help=(
                "With --repair: take copies from backups in this folder as well, or in"
                " s3://bucket/prefix."
            ),
        ),
    ] = None,
    identity: IdentityOption = None,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait-s",
            min=0,
            help="How long to wait for indexes to come to the ends of the logs, in seconds.",
        ),
    ] = 10.0,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Look for damage: in the files of an embedded store, or on every node of the clusters, beside
    live writes.

    Identities of histories; SQLite's integrity_check, or CHECK TABLE; ids that a log lacks; the
    checksum of every cell; counters, keys and index entries against the cells. Each finding names
    its place, shard and added_id. Exits with 1 when anything is wrong, or could not be looked at.

    --repair takes a copy from another node of the same cluster, or from a backup of the same
    history, and only where its checksum fits. Each cell that it replaced is named. Without a good
    copy it changes nothing.
    """
    if backups is not None and not repair:
        raise InvalidRequest("--backups says where --repair takes copies from: give both, or none")
    if identity and backups is None:
        raise InvalidRequest("--identity decrypts the backups of --backups: give both, or none")

    copies = (
        Backups(place_at(backups), identities_of(identity or ())) if backups is not None else None
    )
    settings, found, began_s = config_of(run_dir, config), Findings(), time.monotonic()
    with progress_bar() as bar:
        task = bar.add_task(
            f"checking {settings.datastore.name} (cells)", total=cells_to_check(settings, run_dir)
        )
        check_storage(settings, run_dir, found, lambda cells: bar.advance(task, cells))
    seconds = time.monotonic() - began_s
    if repair:
        with errors.status("repairing"):
            repair_storage(settings, run_dir, copies, found)
    if indexes:
        with errors.status("indexes") as status:
            check_indexes(config, run_dir, wait_s, found, status.update)
    for each in found.found:
        if as_json:
            print_json(each.as_json())
        else:
            console.print(Text(str(each), "yellow" if each.mended else "red"), soft_wrap=True)
    if as_json:
        counts = {
            "cells": found.cells,
            "findings": len(found.found) + found.unnamed,
            "without_checksum": found.without_checksum,
        }
        print_json({"well": found.well, **counts, "seconds": round(seconds, 3)})
    else:
        if found.unnamed:
            console.print(
                f"{found.unnamed} more findings are not named", style="red", highlight=False
            )
        if found.without_checksum:
            console.print(
                f"{found.without_checksum} cells of an earlier version have no checksum: `cellfeed"
                " scrub` adds it",
                highlight=False,
            )
        verdict = (
            "nothing is wrong" if found.well else f"{len(found.found) + found.unnamed} findings"
        )
        console.print(
            f"{found.cells} cells looked at in {seconds:.1f} s: {verdict}", highlight=False
        )
    if not found.well:
        raise typer.Exit(1)
