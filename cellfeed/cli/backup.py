"""backup create|list|verify|prune: what a datastore holds, as files."""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from cellfeed.assembly.backup_source import backup_source
from cellfeed.assembly.trial_restore import Trial, try_restore
from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    ConfigOption,
    DatastoreOption,
    IdentityOption,
    RunDirOption,
    config_of,
)
from cellfeed.cli.output import JsonOption, console, errors, print_json, progress_bar
from cellfeed.run_dir import RunDir
from cellfeed.signals import ending_at_signals
from cellfeed.store.backups.binlogs.archive import archives_in
from cellfeed.store.backups.binlogs.covered import Superfluous, remove_superfluous, superfluous
from cellfeed.store.backups.binlogs.verify import verify_archive
from cellfeed.store.backups.check import verify, verify_without_identity
from cellfeed.store.backups.create import create
from cellfeed.store.backups.encryption import Identities, identities_of, recipients_of
from cellfeed.store.backups.folder import Backup, BackupFolder, with_identities
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.backups.prune import Decision, decide, remove
from cellfeed.store.backups.register import Register
from cellfeed.store.errors import DataDamaged, InvalidRequest, UnknownDatastore

app = typer.Typer(
    no_args_is_help=True,
    help="Back a datastore up into files, and look after them; `cellfeed restore` brings one back.",
)
FolderArgument = Annotated[
    str,
    typer.Argument(metavar="DIR", help="The folder of backups, or s3://bucket/prefix."),
]
BackupOption = Annotated[
    str | None,
    typer.Option(
        "--backup",
        metavar="NAME",
        help="This backup, as `backup list` shows it; the newest when left out.",
    ),
]

LATEST = "latest"


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
                "Only what has come since this backup of the folder: its name, or `latest`. It must"
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
            help="No more than so many cells a second; as fast as it goes when left out.",
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
    the next one removes what it left. Nothing else in the folder is ever removed.

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
    _tell(made, as_json, f"{made.place}: {_described(made)}")


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
        told = backup.manifest
        table.add_row(
            backup.name,
            told.datastore,
            _moment(told.created_at_us),
            str(told.cells),
            str(told.bytes),
            "yes" if told.is_encrypted else "no",
            told.onto or "",
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


@app.command("verify")
def verify_backup(
    directory: FolderArgument,
    backup: BackupOption = None,
    identity: IdentityOption = None,
    trial: Annotated[
        bool,
        typer.Option(
            "--restore",
            help=(
                "When it is whole, restore it into a temporary embedded store, too, compare that"
                " with the backup, and remove it."
            ),
        ),
    ] = False,
    tmp_dir: Annotated[
        Path | None,
        typer.Option(
            "--tmp-dir",
            metavar="DIR",
            help=(
                "Where the temporary store is made; it takes up to 6.5 times the bytes of the"
                " backup, of a large one 1.5 times and 512 MiB. The system's temporary directory"
                " when left out."
            ),
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a backup, and those that it stands on, and check every byte of it: lengths, checksums,
    missing cells, the digest of each log, and the register of erasures. Archived binlogs of its
    datastore are read as well: checksums, and that no piece is missing. Exits with 1 for damage.

    An encrypted backup is decrypted with `--identity`. Without, only its completeness is checked:
    that every file has its length and SHA-256, and that no piece of a log is missing.

    The temporary store of `--restore` is removed also when the trial fails or a signal ends it
    (exit code 128 and the signal's number). It has bodies of rows that were erased since: after a
    kill -9 the next trial with the same temporary directory removes it.
    """
    if tmp_dir is not None and not trial:
        raise InvalidRequest("--tmp-dir is the place of a trial restore: give --restore as well")
    folder = BackupFolder(place_at(directory))
    identities = identities_of(identity or ())
    chain = folder.chain(folder.get(backup))
    if identities is not None or trial:
        chain = with_identities(chain, identities)
    is_read = not any(each.is_locked for each in chain)
    register = Register(folder.place, identities=identities)
    recorded = [(chain[-1].name, chain[-1].manifest.register)]
    with progress_bar() as bar:
        task = bar.add_task("verifying (cells)", total=sum(each.manifest.cells for each in chain))
        wrong = (
            verify(chain, lambda cells: bar.advance(task, cells))
            if is_read
            else verify_without_identity(chain)
        )
    try:
        if is_read:
            register.entries(recorded)
        else:
            register.check(recorded)
    except DataDamaged as error:
        wrong.append(str(error))
    pieces = 0
    for archive in archives_in(folder.place, chain[-1].manifest.datastore):
        checked = verify_archive(archive, identities)
        pieces += checked.pieces
        wrong += checked.wrong
    tried: Trial | None = None
    if trial and not wrong:
        try:
            tried = _tried(folder, chain, tmp_dir or Path(tempfile.gettempdir()), identities)
        except DataDamaged as error:
            wrong.append(str(error))
    if as_json:
        print_json(
            {
                "backup": chain[-1].name,
                "stands_on": [each.name for each in chain[:-1]],
                "whole": not wrong,
                "decrypted": is_read,
                "binlog_pieces": pieces,
                "damage": wrong,
                **({"restored": tried and tried._asdict()} if trial else {}),
            }
        )
    else:
        for line in wrong:
            console.print(line, style="red", highlight=False)
    if wrong:
        raise DataDamaged(
            f"backup {chain[-1].name}, or what is archived beside it, is damaged: it cannot be"
            " restored"
        )
    if not as_json:
        console.print(
            f"{chain[-1].name} is {'whole' if is_read else 'complete'}:"
            f" {sum(each.manifest.cells for each in chain)} cells"
            + (f", and {pieces} pieces of archived binlogs" if pieces else "")
            + ("" if is_read else "; it is encrypted, and --identity reads its content as well"),
            highlight=False,
        )
    if tried and not as_json:
        console.print(
            f"restored on trial, read back and removed: {tried.ids} ids, {tried.state_entries}"
            f" entries of the state; {tried.erased} rows erased again",
            highlight=False,
        )


def _tried(
    folder: BackupFolder, chain: list[Backup], tmp_dir: Path, identities: Identities | None
) -> Trial:
    with ending_at_signals(), progress_bar() as bar:
        task = bar.add_task("restoring on trial (cells)", total=None)
        return try_restore(
            folder,
            chain,
            tmp_dir,
            lambda done, total: bar.update(task, completed=done, total=total),
            identities,
        )


@app.command("prune")
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
        bool, typer.Option("--dry-run", help="Say what would go; do nothing.")
    ] = False,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove backups that are older than so many days, with the increments that stand on them;
    damaged ones as old as that; rests of killed ones; and archived binlogs that the last two whole
    backups have made superfluous.

    Only folders that a backup made are removed, and of these only a backup's own files. A dry run
    prints what a run removes. Refused (exit code 3) unless a whole newer backup stays: take a full
    one first.
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


def _described(backup: Backup) -> str:
    told = backup.manifest
    return (
        f"{told.cells} cells in {told.bytes} bytes"
        + (f", onto {told.onto}" if told.onto else "")
        + (f", encrypted to {', '.join(told.recipients)}" if told.is_encrypted else "")
    )


def _tell(backup: Backup, as_json: bool, text: str) -> None:
    if as_json:
        print_json(_as_json(backup))
    else:
        console.print(text, highlight=False)


def _as_json(backup: Backup) -> dict[str, object]:
    told = backup.manifest
    return {
        "backup": backup.name,
        "datastore": told.datastore,
        "shards": told.shards,
        "created_at": _moment(told.created_at_us),
        "cells": told.cells,
        "bytes": told.bytes,
        "onto": told.onto,
        "recipients": told.recipients,
        "watermarks": {str(log.shard): log.watermark for log in told.logs},
    }


def _moment(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")
