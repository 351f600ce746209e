"""Takes a backup of a datastore, online: beside writers, readers and trims, from a minion where
there is one that has all the cells needed.

**One moment that is consistent enough.** In this order:

    1. offsets that are kept elsewhere (by the caller), then the state table in one look.
    2. the register of erasures gets all that the state and the folder's manifests know.
    3. the heads of all logs: one watermark for each shard, past all that was acknowledged before
       (:mod:`cellfeed.store.backups.ends`).
    4. leader epochs, columns, dictionaries and their turns.
    5. every log from its start (or from where the backup below it ended) up to its watermark.
    6. dictionaries and their turns once more: those from before and those from after are written.
    7. the register gets the erasures that the logs mark; then the manifest.

So every cell that an offset, a parked cell, a settled start or an erasure of 1 names lies below the
watermarks of 3. Every dictionary that a body below them names is among those of 4 or 6: a
dictionary is there before the first body that takes it. A cell above a watermark had been shown to
nobody when the watermark was read.

A log whose front is trimmed meanwhile continues at its new start: a restore leaves out cells that
were written before it.

**Checked while it is taken.** Each body is decoded and goes into the product's digest, and each id
is accounted for (:mod:`cellfeed.store.backups.log_writer`). So a backup of bodies that nobody could
read, or of a log that lacks cells, fails at once. The files and their names are on disk before the
manifest, which comes last (:mod:`cellfeed.store.backups.folder` has the crash points).
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.base import check_history, check_lineage, check_name
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.folder import BackupFolder, next_sequence
from cellfeed.store.backups.folder_kind import refuse_other_kind
from cellfeed.store.backups.log_writer import OnProgress
from cellfeed.store.backups.marker import Marker, remove_files, write_marker
from cellfeed.store.backups.prune import remove, unfinished
from cellfeed.store.backups.sealed import ENCRYPTED, PLAIN
from cellfeed.store.backups.taking import Pacing, Source, take
from cellfeed.store.cells.cell import moment
from cellfeed.store.errors import CellfeedError, InvalidRequest, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("backup.after_marker")

_log: Final = logging.getLogger("cellfeed.backup")


def create(
    folder: BackupFolder,
    source: Source,
    *,
    onto: Backup | None = None,
    recipients: Recipients | None = None,
    cells_per_s: float | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> Backup:
    """Makes a backup; with ``onto`` only of the cells since that one. ``recipients``: whom it is
    encrypted to. A backup that failed or was killed is no backup.

    Raises ProtectData for a datastore whose log is not the one of ``onto``, and for a folder of
    another store of that name. It does so, too, for other recipients than the folder and ``onto``
    have. Raises DataDamaged, DictionaryLost for cells and dictionaries that are unreadable or
    missing; Unavailable, also while cells that are acknowledged cannot be read."""
    if cells_per_s is not None and cells_per_s <= 0:
        raise InvalidRequest(f"{cells_per_s:g} cells a second is no pace: it must be above 0")
    engine = source.engine
    with folder.locked():
        found, unreadable = folder.look()
        refuse_other_kind(folder, found, unreadable, onto, recipients)
        rests = unfinished(folder, unreadable, engine.datastore)
        remove(folder, rests)
        for each in rests:
            _log.warning(
                "removed from %s the files of a backup that was killed: %s", folder.place, each
            )
        chain = folder.chain(onto) if onto is not None else []
        if onto is not None:
            check_name(engine, onto)
            check_history(engine, onto)
        check_lineage(folder, found, engine)
        begun_us = engine.state.now_us()
        name = f"{moment(begun_us):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        marker = Marker(
            PLAIN if recipients is None else ENCRYPTED,
            secrets.token_hex(16),
            name,
            engine.datastore,
            engine.shards,
            next_sequence(found, unreadable),
            begun_us,
        )
        place = folder.place.inside(name)
        try:
            place.make()
        except OSError as error:  # another entry of that name is not of this backup, and stays
            raise StorageUnavailable(f"no backup taken: {place}: {error.strerror}") from error
        try:
            write_marker(place, marker)
            folder.place.sync()
            failpoint("backup.after_marker")
            take(
                folder,
                found,
                place,
                marker,
                source,
                chain,
                recipients,
                Pacing(cells_per_s, on_progress),
            )
        except (CellfeedError, OSError) as error:
            with suppress(OSError, CellfeedError):
                remove_files(folder.place, marker)
            if isinstance(error, OSError):
                raise StorageUnavailable(
                    f"no backup taken: {error.filename or place}: {error.strerror}"
                ) from error
            raise
        return folder.get(name)
