"""A trial restore: a backup becomes an embedded datastore in a temporary folder of its own, is
compared with the backup, and is removed.

It goes through the code of a restore, so it finds the faults that a restore would meet: each piece
of a log is read back and has the digest that it had when it was backed up; the register of erasures
and later backups can be read. Then the store is opened as any other: ends of its logs and its state
are those of the plan.

**It leaves nothing behind.** For a while the folder has the bodies of rows that were erased since.
It is removed when the trial ends well, fails, or is ended by a signal. A trial that SIGKILL or a
power cut ended leaves it: the next trial with the same temporary directory removes it. It takes
only folders with a name as it gives them, of its own user, with a lock file that nobody holds. That
file goes last, so a removal that was killed is ended by the next one.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from cellfeed.bridge.backups.kept_state import restored
from cellfeed.processes.signals import raise_if_asked, uninterrupted
from cellfeed.store.backups.backup import Backup, with_identities
from cellfeed.store.backups.binlogs.archives import archives_in
from cellfeed.store.backups.binlogs.tailed_folder import with_tails
from cellfeed.store.backups.check import dictionaries_known, read_state
from cellfeed.store.backups.encryption import Identities
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.restore import OnProgress, restore
from cellfeed.store.backups.restore_plan import Plan, plan
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import DataDamaged, InvalidRequest, StorageUnavailable

_PREFIX: Final = "cellfeed-trial-restore-"
_NAME: Final = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")
_LOCK: Final = "lock"
_STORE: Final = "store"

_STORE_OF_BACKUP: Final = 1.5
"""Bytes of an embedded store for each byte of a backup: 178 to 128 for a trip."""

_LOG_OF_BACKUP: Final = 5
"""Bytes of its write-ahead log for each byte of a small backup: a restore of 20 MB took 4.2."""

_LOG_BYTES_MAX: Final = 256 << 20
"""Twice the size at which commits wait for the log to be moved
(:data:`cellfeed.store.engines.sqlite.checkpoints.FULL_FRAMES`)."""

_EMPTY_BYTES: Final = 1 << 20
"""The files of a store without a cell."""


class Trial(NamedTuple):
    """The restored data: ids of all logs, rows that were erased again, entries of the state.
    ``behind_gap``: logs whose archived binlogs have ids behind a gap, which a restore refuses."""

    ids: int
    erased: int
    state_entries: int
    behind_gap: int = 0


def try_restore(
    folder: BackupFolder,
    chain: list[Backup],
    tmp_dir: Path,
    on_progress: OnProgress = lambda *_: None,
    identities: Identities | None = None,
    *,
    is_tailed: bool = False,
) -> Trial:
    """Does it, in a folder inside ``tmp_dir``. ``chain``: a full backup and its increments, in
    order, decrypted with ``identities`` where they are encrypted; ``is_tailed``: with the part of
    archived binlogs beyond it. Raises DataDamaged where the backup cannot be restored,
    InvalidRequest without that directory, StorageUnavailable where it has too little room or
    fails."""
    manifest = chain[-1].manifest
    archived = sum(each.size_bytes() for each in archives_in(folder.place, manifest.datastore))
    needed = bytes_needed(sum(each.manifest.bytes for each in chain) + archived)
    with (
        _temporary(tmp_dir, needed) as place,
        with_tails(
            folder, manifest.datastore, identities, place.with_name("binlogs.restoring")
        ) as tailed,
    ):
        if is_tailed:
            found = tailed.chain(tailed.get(None, manifest.datastore))
            chain = with_identities(found, identities)
        planned = _planned(tailed, chain, identities)

        def report(done: int, total: int) -> None:
            raise_if_asked()
            on_progress(done, total)

        with SqliteTarget(place, manifest.datastore, manifest.shards) as target:
            restore(planned, target, report)
        _compare_opened(planned, place)
        return Trial(
            sum(log.end - log.log_start for log in planned.logs.values()),
            len(planned.erased),
            len(planned.state),
            len(tailed.beyond),
        )


def _planned(folder: BackupFolder, chain: list[Backup], identities: Identities | None) -> Plan:
    register = Register(folder.place, identities=identities)
    erasures = recorded_in(register, chain[-1], folder.later(chain[-1]))
    now_us = time.time_ns() // 1000
    entries = read_state(chain[-1])
    with dictionaries_known(chain):
        erased = to_erase(chain, entries, erasures)
    back = restored(entries, now_us, [row_key for keys in erased.values() for row_key in keys])
    return plan(chain, back, [], {}, now_us, "a trial restore", erased)


def bytes_needed(backup_bytes: int) -> int:
    """The room that a trial restore of so many bytes takes at most, in bytes, about."""
    return (
        int(_STORE_OF_BACKUP * backup_bytes)
        + min(_LOG_OF_BACKUP * backup_bytes, _LOG_BYTES_MAX)
        + _EMPTY_BYTES
    )


def _compare_opened(planned: Plan, place: Path) -> None:
    """Raises DataDamaged unless the store opens with the ends and the state of the plan."""
    manifest = planned.backup.manifest
    with closing(SqliteEngine(place, manifest.datastore, manifest.shards)) as engine:
        heads = engine.heads()
        state = {entry.key: entry.value for entry in engine.state.list("")}
    for log in planned.logs.values():
        found = heads[log.shard].log_start, heads[log.shard].watermark
        if found != (log.log_start, log.next_added_id):
            raise DataDamaged(
                f"shard {log.shard}: the restored log goes from {found[0]} to {found[1] - 1}, not"
                f" from {log.log_start} to {log.next_added_id - 1}"
            )
    for key, value in planned.state:
        if state.get(key) != value:
            raise DataDamaged(f"the restored state differs from the backup's at {key!r}")


@contextmanager
def _temporary(tmp_dir: Path, needed: int) -> Iterator[Path]:
    """A place for a datastore in a new folder inside ``tmp_dir``, which is gone afterwards."""
    if not tmp_dir.is_dir():
        raise InvalidRequest(f"--tmp-dir {tmp_dir} is no directory: make it, or name another one")
    _remove_left(tmp_dir)
    free = shutil.disk_usage(tmp_dir).free
    if free < needed:
        raise StorageUnavailable(
            f"nothing restored: {tmp_dir} has {free} bytes free, a trial restore of this backup"
            f" needs about {needed} bytes: name another directory with --tmp-dir"
        )
    folder = tmp_dir / f"{_PREFIX}{secrets.token_hex(8)}"
    lock: BinaryIO | None = None
    try:
        with uninterrupted():
            lock = _made(folder)
        yield folder / _STORE / "datastore"
    finally:
        # Signals wait meanwhile: one that came in the middle would leave the rest.
        with uninterrupted():
            if lock is not None:
                with lock:
                    _remove(folder)


def _made(folder: Path) -> BinaryIO:
    """Makes it; its lock, held. Its lock has its name only when it is held: nobody else takes it
    for one that was left."""
    try:
        folder.mkdir(mode=0o700)
        lock = (folder / f"{_LOCK}.staged").open("xb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / f"{_LOCK}.staged").rename(folder / _LOCK)
    except OSError as error:
        raise StorageUnavailable(f"nothing restored: {folder}: {error.strerror}") from error
    return lock


def _remove_left(tmp_dir: Path) -> None:
    """Removes the folders of trials that were killed."""
    for folder in tmp_dir.glob(f"{_PREFIX}*"):
        if _NAME.fullmatch(folder.name) is None or folder.is_symlink():
            continue
        try:
            if folder.stat().st_uid != os.geteuid():
                continue
            lock = (folder / _LOCK).open("rb")
        except OSError:  # somebody else's, or it is being removed just now
            continue
        with lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)


def _remove(folder: Path) -> None:
    try:
        if (folder / _STORE).exists():
            shutil.rmtree(folder / _STORE)
        (folder / _LOCK).unlink()
        folder.rmdir()
    except OSError as error:
        raise StorageUnavailable(
            f"{error.filename}: {error.strerror}: bodies that were erased may be in {folder};"
            " remove it"
        ) from error
