"""restore: a backup becomes a datastore again."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from cellfeed.assembly.datastore import restore_target
from cellfeed.bridge.backups.kept_state import restored, trigger_groups
from cellfeed.bridge.backups.readers import group_readers, set_back
from cellfeed.bridge.coordination.open import open_offsets_elsewhere
from cellfeed.bridge.groups.history import operator
from cellfeed.cli.backup_options import BackupOption, FolderArgument
from cellfeed.cli.instance import IdentityOption
from cellfeed.cli.output import JsonOption, errors, progress_bar
from cellfeed.cli.restore_options import (
    NO_REASON,
    AboveOption,
    AheadOption,
    AtOption,
    DryRunOption,
    FromHistoryOption,
    IntoOption,
    ReasonOption,
    RowKeyOption,
    ShardOption,
    TargetConfigOption,
    refuse_together,
)
from cellfeed.cli.restore_part import part_of, put_part
from cellfeed.cli.restore_point import Choice
from cellfeed.cli.restore_readers import ReadersAhead, first_new_ids, ids_read, readers_of_config
from cellfeed.cli.restore_report import print_restored
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.binlogs.tailed_folder import with_tails
from cellfeed.store.backups.check import dictionaries_known, read_state
from cellfeed.store.backups.encryption import identities_of
from cellfeed.store.backups.erasures import erased_in_folder, recorded_in, to_erase
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import Manifest, Reader
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.backups.readers_ahead import (
    backup_readers,
    readers_ahead,
    refuse_readers_ahead,
)
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.restore import restore as restore_backup
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.restore_target import Target
from cellfeed.store.errors import ProtectData
from cellfeed.store.histories import History


def restore(
    directory: FolderArgument,
    into: IntoOption,
    config: TargetConfigOption = None,
    backup: BackupOption = None,
    identity: IdentityOption = None,
    at: AtOption = None,
    ahead: AheadOption = ReadersAhead.REFUSE,
    above: AboveOption = None,
    reason: ReasonOption = NO_REASON,
    row_key: RowKeyOption = None,
    shard: ShardOption = None,
    dry_run: DryRunOption = False,
    from_history: FromHistoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a backup back into empty storage: embedded, or the clusters of a configuration. It is
    opened when it is whole and was read back.

    Refused (exit code 3) where a cell was ever written, and where the coordination is the ZooKeeper
    chroot of another datastore. Refused (exit code 3) while a reader is
    known to be beyond the backup: a consumer group, a trigger, an export, a warehouse, a later
    backup. Refused (exit code 1) while a later backup or the register of erasures cannot be read.
    Killed, it is run again. Indexes are built again; every reader resumes where it was. An
    encrypted backup needs --identity.

    The part of archived binlogs beyond the newest backup is restored with it, and covers moments up
    to their end. Ids behind a gap in them count as read.

    --at takes the two backups of the folder that the moment lies between. Cells come from both,
    the state (offsets, parked cells, users) from the earlier one, and erasures from the register,
    whenever they were. A moment that no two backups cover is refused (exit code 2) with the
    earliest and the latest. The ids continue above all that any backup has.

    --row-key and --shard restore a part into a store that has cells, while its processes run or
    not. Each cell that the store lacks is put: it gets a new id, and triggers and consumers see it
    as a new cell. Nothing is overwritten: cells with another body are named (exit code 1). Rows
    that were erased are left out. Refused (exit code 3) where the backup is neither of the store's
    history, nor of its parent, nor of the first of its lineage.
    """
    whole_only = {
        "--at": at is not None,
        "--readers-ahead": ahead is not ReadersAhead.REFUSE,
        "--above": above,
        "--reason": reason != NO_REASON,
    }
    part_only = {"--dry-run": dry_run, "--from-history": from_history is not None}
    refuse_together(row_key, shard, whole_only, part_only)
    by = operator(reason)
    run_dir = RunDir(into)
    checked = load_config(config or (run_dir.config if run_dir.config.exists() else None))
    identities = identities_of(identity or ())
    with ExitStack() as opened:
        folder = opened.enter_context(
            with_tails(
                BackupFolder(place_at(directory)),
                checked.datastore.name,
                identities,
                run_dir.path / "binlogs.restoring",
            )
        )
        choice = Choice(folder, backup, at, checked.datastore.name)
        manifest = choice.manifest
        if (checked.datastore.name, checked.datastore.shards) != (
            manifest.datastore,
            manifest.shards,
        ):
            raise ProtectData(
                f"nothing restored: the backup is of datastore {manifest.datastore!r} with"
                f" {manifest.shards} shards, the configuration has {checked.datastore.name!r} with"
                f" {checked.datastore.shards}: a row key's shard never changes. Give one that fits"
                " with --config"
            )
        named = ids_read(above or (), manifest)
        part = part_of(row_key, shard, manifest.shards)
        with errors.status("reading the backups"):
            chosen = choice.checked(None if part is None else part.shard, identities)
        chain, manifest, state_of = chosen.chain, chosen.manifest, chosen.state_of
        later = folder.later(state_of) if part is None else folder.later(chain[-1], then="")
        erasures = recorded_in(Register(folder.place, identities=identities), state_of, later)
        if part is not None:
            with dictionaries_known(chain):
                erased_rows = erased_in_folder(chain, later, erasures)
            put_part(run_dir, checked, chain, part, erased_rows, from_history, dry_run, as_json)
            return
        target = opened.enter_context(restore_target(checked, run_dir.path, manifest.owners))
        offsets = open_offsets_elsewhere(
            checked.coordination, _heir(manifest, target, chosen.backup)
        )
        if offsets is not None:
            opened.enter_context(closing(offsets))
        living = [*group_readers(offsets, manifest.shards), *readers_of_config(checked, run_dir)]
        readers = [*living, *backup_readers(later), *folder.beyond]
        if ahead is ReadersAhead.REFUSE:
            # A point in time lies before later backups by definition, so they are no readers ahead.
            asked = readers if chosen.point is None else living
            refuse_readers_ahead([chosen.backup], readers_ahead([chosen.backup], asked))
        now_us = time.time_ns() // 1000
        entries = read_state(state_of)
        raised = ahead is ReadersAhead.RAISE_EPOCH or chosen.point is not None
        new_ids = first_new_ids(manifest, readers, named, raised=raised)
        with dictionaries_known(chain):
            erased = to_erase(chain, entries, erasures, manifest.logs)
        entries_back = restored(
            entries, now_us, [row_key for row_keys in erased.values() for row_key in row_keys]
        )
        planned = plan(
            chain,
            entries_back,
            readers,
            new_ids,
            now_us,
            f"{by.name}: {by.because}" + (f", as of {chosen.point}" if chosen.point else ""),
            erased,
            target.begun_epoch(chosen.backup),
            chosen.backup,
        )
        back = list[Reader]()

        def before_open() -> None:
            if offsets is not None:
                # A shard that a killed run opened is in use: its offsets, and cells parked since,
                # belong to the cells that are there.
                back.extend(
                    set_back(
                        offsets,
                        trigger_groups(entries),
                        [reader for reader in manifest.readers if not target.is_open(reader.shard)],
                    )
                )

        with progress_bar() as bar:
            task = bar.add_task("restoring and reading back (cells)", total=None)
            left = restore_backup(
                planned,
                target,
                lambda done, total: bar.update(task, completed=done, total=total),
                before_open,
            )
        lost = {shard: ids for shard, ids in planned.lost.items() if not target.is_open(shard)}
    print_restored(planned, chosen, lost, back, left, as_json)


def _heir(manifest: Manifest, target: Target, backup: Backup) -> History:
    """The history that the restore begins, or has begun."""
    return History(
        target.begun_history(backup), manifest.history.history_id, manifest.history.origin_id
    )
