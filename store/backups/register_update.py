"""Brings the register of erasures up to date before a backup is taken."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.erasures import known_to_manifests, known_to_state
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.register import Register
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import StateEntry

_log: Final = logging.getLogger("cellfeed.backup")


def update_register(
    folder: BackupFolder,
    found: Sequence[Backup],
    register: Register,
    engine: Engine,
    entries: Sequence[StateEntry],
) -> None:
    """Adds the erasures that the folder's manifests and the store know. Raises DataDamaged for
    a register that is not the newest manifest's. One that is missing is made: the backups from
    before that recorded another one are then refused by a restore."""
    if register.is_there():
        register.check((each.name, each.manifest.register) for each in found[-1:])
    elif any(each.manifest.register is not None for each in found):
        _log.warning(
            "%s has lost its register of erasures: a new one is made, and backups that were taken"
            " with the lost one are not restored",
            folder.place,
        )
    state = [(entry.key, entry.value) for entry in entries]
    register.add(
        [
            *known_to_manifests(found, engine.datastore, engine.shards),
            *known_to_state(engine.datastore, engine.shards, state),
        ]
    )
