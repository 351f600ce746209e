"""A folder of backups is encrypted or it is not: all of it, with its register of erasures.

A plain backup beside encrypted ones would put in the clear cells that somebody has decided to
encrypt, because one command lacked its recipient. An encrypted one beside plain ones would look
safe, while the register beside it names row keys. So either is refused. Full backups of one folder
may have different recipients, for keys are changed; an increment has those of its base, since a
restore needs both.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.store.backups.backup import Backup, Unreadable
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.sealed import ENCRYPTED
from cellfeed.store.errors import ProtectData


def refuse_other_kind(
    folder: BackupFolder,
    found: Sequence[Backup],
    unreadable: Sequence[Unreadable],
    onto: Backup | None,
    recipients: Recipients | None,
) -> None:
    """Raises ProtectData for a backup that does not fit the folder or its base; DataDamaged while
    the register cannot be read. ``found``, ``unreadable``: the contents of the folder."""
    if onto is not None and onto.manifest.is_encrypted:
        keys = list(recipients.keys) if recipients is not None else []
        if keys != onto.manifest.recipients:
            raise ProtectData(
                f"no backup taken: {onto.name} is encrypted to"
                f" {', '.join(onto.manifest.recipients)}, and an increment onto it must be, too; it"
                f" would be {'encrypted to ' + ', '.join(keys) if keys else 'not encrypted'}. Give"
                " the same recipients, or take a full backup, without --onto"
            )
    kinds = {each.manifest.is_encrypted for each in found}
    kinds |= {
        each.marker.format_version == ENCRYPTED
        for each in unreadable
        if each.finished and each.marker is not None
    }
    register = Register(folder.place).is_encrypted()
    kinds |= {register} if register is not None else set()
    if recipients is None and True in kinds:
        raise ProtectData(
            f"no backup taken: the backups in {folder.place} are encrypted, and this one would not"
            " be: give --recipient, or take it into a folder of its own"
        )
    if recipients is not None and False in kinds:
        raise ProtectData(
            f"no backup taken: {folder.place} has backups that are not encrypted, or a register"
            " that names erased row keys in the clear: take encrypted ones into a folder of their"
            " own"
        )
