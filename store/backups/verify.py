"""Verifies backups: reads everything and names every file that is damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import check_whole, dictionaries_known, read_segment, read_state
from cellfeed.store.errors import CellfeedError, StorageUnavailable

_READ_BYTES: Final = 1 << 20

OnProgress = Callable[[int], None]
"""Gets how many cells have been read, after each piece."""


def check_files(chain: Sequence[Backup], shard: int | None = None) -> list[str]:
    """The faults of the files of these backups, by length and SHA-256: a line for each; nothing
    when all are as they were written. ``shard``: files that have cells of other shards alone are
    not read."""
    wrong = []
    for backup in chain:
        others = {each.file for each in backup.manifest.segments if each.shard != shard} - {
            each.file for each in backup.manifest.segments if each.shard == shard
        }
        for file in backup.manifest.files:
            if shard is not None and file.name in others:
                continue
            try:
                digest = sha256()
                size = 0
                with backup.place.open(file.name) as opened:
                    while piece := opened.read(_READ_BYTES):
                        digest.update(piece)
                        size += len(piece)
            except OSError as error:
                wrong.append(f"{backup.name}/{file.name}: {error.strerror}")
                continue
            if size != file.bytes:
                wrong.append(f"{backup.name}/{file.name}: {size} bytes, {file.bytes} were written")
            elif digest.hexdigest() != file.sha256:
                wrong.append(f"{backup.name}/{file.name}: its content differs from its SHA-256")
    return wrong


def verify(chain: Sequence[Backup], on_progress: OnProgress = lambda _: None) -> list[str]:
    """Reads all that these backups hold; returns the faults, a line each. ``chain``: a full backup
    and its increments, in order."""
    wrong = check_files(chain)
    damaged = {line.partition(":")[0] for line in wrong}
    try:
        with dictionaries_known(chain):
            for backup in chain:
                for segment in backup.manifest.segments:
                    if f"{backup.name}/{segment.file}" in damaged:
                        continue
                    try:
                        for cells in read_segment(backup, segment):
                            on_progress(len(cells))
                    except StorageUnavailable:
                        raise
                    except CellfeedError as error:
                        wrong.append(str(error))
    except StorageUnavailable:
        raise
    except CellfeedError as error:
        wrong.append(str(error))
    try:
        check_whole(chain)
        read_state(chain[-1])
    except CellfeedError as error:
        wrong.append(str(error))
    return list(dict.fromkeys(wrong))


def verify_without_identity(chain: Sequence[Backup]) -> list[str]:
    """Damage that shows in encrypted backups without decrypting them: lengths, SHA-256,
    and whether the pieces of each log follow each other."""
    wrong = check_files(chain)
    try:
        check_whole(chain)
    except CellfeedError as error:
        wrong.append(str(error))
    return wrong
