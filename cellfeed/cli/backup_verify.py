"""backup verify: reads a backup, or restores it on trial."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cellfeed.assembly.trial_restore import Trial, try_restore
from cellfeed.cli.backup_options import BackupOption, FolderArgument
from cellfeed.cli.instance import (
    IdentityOption,
)
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.processes.signals import ending_at_signals
from cellfeed.store.backups.backup import Backup, with_identities
from cellfeed.store.backups.binlogs.archives import archives_in
from cellfeed.store.backups.binlogs.verify import verify_archive
from cellfeed.store.backups.encryption import Identities, identities_of
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.verify import verify, verify_without_identity
from cellfeed.store.errors import DataDamaged, InvalidRequest


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
                " with the backup, and remove it; the newest one with the later cells of"
                " archived binlogs."
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
            place = tmp_dir or Path(tempfile.gettempdir())
            tried = _tried(folder, chain, place, identities, is_tailed=backup is None)
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
            f"backup {chain[-1].name}, or the archive beside it, is damaged: it cannot be restored"
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
        if tried.behind_gap:
            console.print(
                f"archived binlogs of {tried.behind_gap} logs have ids behind a gap: a restore is"
                " refused without --readers-ahead raise-epoch",
                style="red",
                highlight=False,
            )


def _tried(
    folder: BackupFolder,
    chain: list[Backup],
    tmp_dir: Path,
    identities: Identities | None,
    *,
    is_tailed: bool,
) -> Trial:
    with ending_at_signals(), progress_bar() as bar:
        task = bar.add_task("restoring on trial (cells)", total=None)
        return try_restore(
            folder,
            chain,
            tmp_dir,
            lambda done, total: bar.update(task, completed=done, total=total),
            identities,
            is_tailed=is_tailed,
        )
