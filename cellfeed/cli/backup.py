"""backup create|list|verify|prune: a datastore's content as files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from cellfeed.assembly.backup_source import backup_source
from cellfeed.cli.backup_options import LATEST, FolderArgument
from cellfeed.cli.backup_prune import prune
from cellfeed.cli.backup_verify import verify_backup
from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    ConfigOption,
    DatastoreOption,
    RunDirOption,
    config_of,
)
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.run_dir import RunDir
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.binlogs.archives import archives_in
from cellfeed.store.backups.create import create
from cellfeed.store.backups.encryption import recipients_of
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.errors import UnknownDatastore

app = typer.Typer(
    no_args_is_help=True,
    help="Back a datastore up into files, and look after them; `cellfeed restore` brings one back.",
)


@app.command("create")
def create_backup(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help=(
                "The folder of backups, made when it is not there; or s3://bucket/prefix, in a"
                " bucket that is there."
            ),
        ),
    ],
    onto: Annotated[
        str | None,
        typer.Option(
            "--onto",
            metavar="NAME",
            help=(
                "Only cells since this backup of the folder: its name, or `latest`. It must"
                " be kept."
            ),
        ),
    ] = None,
    recipient: Annotated[
        list[str] | None,
        typer.Option(
            "--recipient",
            metavar="AGE1…",
            help=(
                "Encrypt it to this age recipient, a public key; may be given several times: any"
                " one of their identities decrypts it."
            ),
        ),
    ] = None,
    recipients_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--recipients-file",
            metavar="FILE",
            help="Encrypt it to the recipients of this file as well, one in a line.",
        ),
    ] = None,
    cells_per_s: Annotated[
        float | None,
        typer.Option(
            "--cells-per-s",
            help="At most so many cells a second; as fast as it goes when left out.",
        ),
    ] = None,
    datastore: DatastoreOption = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Back up a datastore while it is at work: every cell below one watermark for each shard, with
    all that is needed to read them and to resume.

    Reads from a minion where there is one, once it has all that is acknowledged by now; fails, and
    names the cells, when that takes longer than half a minute. A backup that was killed is none;
    the next backup removes its files. Nothing else in the folder is ever removed.

    With recipients everything that may hold users' data is encrypted with age before it is written.
    A folder of backups is encrypted or not: one of the other kind is refused (exit code 3), and so
    is an increment with other recipients than the backup that it stands on.
    """
    recipients = recipients_of(recipient or (), recipients_file or ())
    checked = config_of(run_dir, config)
    if datastore not in (None, checked.datastore.name):
        raise UnknownDatastore(
            f"the instance has datastore {checked.datastore.name!r}, not {datastore!r}"
        )
    folder = BackupFolder(place_at(directory))
    below = (
        folder.get(None if onto == LATEST else onto, checked.datastore.name)
        if onto is not None
        else None
    )
    with backup_source(checked, RunDir(run_dir).path) as source, progress_bar() as bar:
        task = bar.add_task("backing up (cells)", total=None)
        made = create(
            folder,
            source(),
            onto=below,
            recipients=recipients,
            cells_per_s=cells_per_s,
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _report(made, as_json, f"{made.place}: {_described(made)}")


@app.command("list")
def list_backups(directory: FolderArgument, as_json: JsonOption = False) -> None:
    """Show the backups of a folder, the oldest first, folders with the name of a backup that are
    none, and archived binlogs."""
    folder = BackupFolder(place_at(directory))
    found, unreadable = folder.look()
    table = Table(
        "backup", "datastore", "begun", "cells", "bytes", "encrypted", "stands on", box=None
    )
    for backup in found:
        if as_json:
            print_json(_as_json(backup))
        manifest = backup.manifest
        table.add_row(
            backup.name,
            manifest.datastore,
            _moment(manifest.created_at_us),
            str(manifest.cells),
            str(manifest.bytes),
            "yes" if manifest.is_encrypted else "no",
            manifest.onto or "",
        )
    for each in unreadable:
        if as_json:
            print_json({"backup": each.name, "error": each.reason})
        table.add_row(each.name, Text(each.reason, "red"))
    if not as_json:
        console.print(table if table.row_count else f"{directory} holds no backup")
    for archive in archives_in(folder.place):
        of, reached, count = archive.marker, archive.reached(), len(archive.numbers())
        if as_json:
            print_json(
                {
                    "binlogs": archive.place.name,
                    "datastore": of.datastore,
                    "cluster": of.cluster,
                    "history": of.history.history_id,
                    "pieces": count,
                    "since": _moment(reached.since_us),
                    "reached": _moment(reached.at_us),
                    "gap": reached.gap or None,
                }
            )
            continue
        console.print(
            f"binlogs of cluster {of.cluster} of {of.datastore}: {count} pieces, without a gap"
            f" from {_moment(reached.since_us)} to {_moment(reached.at_us)}",
            highlight=False,
            soft_wrap=True,
        )


def _described(backup: Backup) -> str:
    manifest = backup.manifest
    return (
        f"{manifest.cells} cells in {manifest.bytes} bytes"
        + (f", onto {manifest.onto}" if manifest.onto else "")
        + (f", encrypted to {', '.join(manifest.recipients)}" if manifest.is_encrypted else "")
    )


def _report(backup: Backup, as_json: bool, text: str) -> None:
    if as_json:
        print_json(_as_json(backup))
    else:
        console.print(text, highlight=False)


def _as_json(backup: Backup) -> dict[str, object]:
    manifest = backup.manifest
    return {
        "backup": backup.name,
        "datastore": manifest.datastore,
        "shards": manifest.shards,
        "created_at": _moment(manifest.created_at_us),
        "cells": manifest.cells,
        "bytes": manifest.bytes,
        "onto": manifest.onto,
        "recipients": manifest.recipients,
        "watermarks": {str(log.shard): log.watermark for log in manifest.logs},
    }


def _moment(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")


app.command("verify")(verify_backup)
app.command("prune")(prune)
