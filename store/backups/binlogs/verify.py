"""Checks an archive of binlogs: every piece by its checksums and by the piece before, and, where it
can be decrypted, by its transactions."""

from __future__ import annotations

from typing import NamedTuple

from cellfeed.store.backups.binlogs.archive import BinlogArchive
from cellfeed.store.backups.encryption import Identities
from cellfeed.store.errors import CellfeedError, StorageUnavailable


class CheckedArchive(NamedTuple):
    """How many pieces were read, and the fault: a line, or none."""

    pieces: int
    wrong: list[str]


def verify_archive(archive: BinlogArchive, identities: Identities | None) -> CheckedArchive:
    """Ends at the first damage: later pieces cannot be restored. An encrypted piece without an
    identity is checked for completeness. Raises StorageUnavailable."""
    count = 0
    try:
        for piece in archive.pieces():
            if not piece.head.recipients or identities is not None:
                piece.transactions(identities, f"{archive}, piece {piece.head.number}")
            count += 1
    except StorageUnavailable:
        raise
    except CellfeedError as error:
        return CheckedArchive(count, [str(error)])
    return CheckedArchive(count, [])
