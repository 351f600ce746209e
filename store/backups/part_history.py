"""Whether the cells of a backup may be put into a store that is in use."""

from __future__ import annotations

from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.errors import InvalidRequest, ProtectData
from cellfeed.store.histories import History

NO_HISTORY_ID: Final = "none"
"""Stands for the identity of a history that was taken before there were identities."""


def check_history(store: History, backup: Backup, accepted: str | None) -> None:
    """Whether the backup is of the store's own history, of its parent, or of the first history of
    its lineage. ``accepted``: the id of a history that the caller vouches for. Raises ProtectData
    with both ids."""
    backed = backup.manifest.history.history_id or NO_HISTORY_ID
    if accepted is not None and accepted != backed:
        raise InvalidRequest(
            f"nothing restored: --from-history {ascii(accepted)[:40]} is not the history of backup"
            f" {backup.name}, which is {backed}"
        )
    if accepted is None and backed not in {store.history_id, store.parent, store.origin_id}:
        known = [
            f"its {name} {each}"
            for name, each in (("parent", store.parent), ("origin", store.origin_id))
            if each and each != store.history_id
        ]
        raise ProtectData(
            f"nothing restored: backup {backup.name} is of history {backed}, the store is of"
            f" {store.history_id or NO_HISTORY_ID}"
            + (f" and knows {' and '.join(known)}" if known else "")
            + ": their cells may have nothing in common. If you know that these cells belong into"
            f" this store: --from-history {backed}"
        )
