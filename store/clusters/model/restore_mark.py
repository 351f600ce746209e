"""The mark of a cluster that is being restored, or was: a state entry, which every join and every
opening looks at."""

from __future__ import annotations

from typing import Final

import msgspec

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import DataDamaged

RESTORE_KEY: Final = "cluster/restore"
"""The state entry that marks a cluster under restore, and afterwards names the backup."""


class Mark(msgspec.Struct, frozen=True):
    """Under way, or done: of the backup with this name and SHA-256. ``role`` is the one that the
    cluster gets, or got, at the end."""

    backup: str
    sha256: str
    role: Role
    done: bool = False


def read_mark(state: StateTable) -> Mark | None:
    """Raises DataDamaged."""
    entry = state.get(RESTORE_KEY)
    try:
        return msgspec.json.decode(entry.value, type=Mark) if entry else None
    except msgspec.MsgspecError as error:
        raise DataDamaged(
            f"the state entry {RESTORE_KEY!r} is no mark of a restore: {error}"
        ) from error
