"""backup prune: removes backups that are older than the declared time."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from cellfeed.cli.backup_options import FolderArgument
from cellfeed.cli.instance import (
    DatastoreOption,
)
from cellfeed.cli.output import JsonOption, console, errors, print_json
from cellfeed.store.backups.binlogs.covered import Superfluous, remove_superfluous, superfluous
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.backups.prune import Decision, decide, remove
from cellfeed.store.errors import InvalidRequest


def prune(
    directory: FolderArgument,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            metavar="DAYS",
            help="The declared time: nothing that was backed up longer ago is left.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the backups that would be removed; do nothing.")
    ] = False,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove backups that are older than so many days, with the increments that stand on them;
    damaged ones as old as that; rests of killed ones; and archived binlogs that the last two whole
    backups have made superfluous.

    Only folders that a backup made are removed, and of these only a backup's own files. A dry run
    prints the files that a run removes. Refused (exit code 3) unless a whole newer backup stays:
    take a full one first.
    """
    if keep < 0:
        raise InvalidRequest(f"--keep {keep:g} is below 0")
    folder = BackupFolder(place_at(directory))
    folder.look()
    with folder.locked(), errors.status("reading the newest backup that stays"):
        decision = decide(folder, keep, time.time_ns() // 1000, datastore)
        binlogs = superfluous(folder, datastore)
        if not dry_run:
            remove(folder, decision.goes)
            remove_superfluous(binlogs)
    if as_json:
        _print_decision(decision, binlogs, dry_run)
        return
    console.print(
        f"{'would go' if dry_run else 'removed'}:"
        f" {', '.join(map(str, [*decision.goes, *binlogs])) or 'none'}",
        highlight=False,
    )
    console.print(
        f"left: {', '.join(backup.name for backup in decision.stays) or 'none'}", highlight=False
    )
    for name, reason in decision.damaged.items():
        console.print(f"left, and damaged: {name}: {reason}", style="red", highlight=False)


def _print_decision(decision: Decision, binlogs: list[Superfluous], dry_run: bool) -> None:
    def names(why: str) -> list[str]:
        return [each.marker.name for each in decision.goes if each.why == why]

    found: dict[str, object] = {
        "removed": names("expired"),
        "unfinished": names("not finished"),
        "damaged": names("damaged"),
    }
    found |= {"left": [backup.name for backup in decision.stays], "left_damaged": decision.damaged}
    print_json(
        {
            **found,
            "not_ours": {each.marker.name: each.stays for each in decision.goes if each.stays},
            "binlog_pieces": {each.archive.place.name: len(each.numbers) for each in binlogs},
            "dry_run": dry_run,
        }
    )
