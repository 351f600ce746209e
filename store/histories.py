"""The identity of a history: a random id, drawn when a datastore is made and again by every
restore.

Names, positions, epochs and ids of cells repeat: a store is made again under its name, a backup is
restored twice, a server of staging stands in production's configuration. So every part that joins,
follows, continues or is compared names the history that it belongs to. Two parts with different ids
have nothing in common, however alike they look. The empty id is of a part that was made before
there were identities: it fits any history, until ``cellfeed cluster migrate`` gives it one.

A restored history names its **parent**, the history that was backed up, and keeps its **origin**,
the first history of the lineage. A process that acts outside of the store (a charge) names the
origin: a restore does not change it.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from cellfeed.store.errors import ProtectData


class History(msgspec.Struct, frozen=True):
    """``parent``: of a restored history the one that was backed up. ``origin_id``: the first of the
    lineage, which restores keep. Each is empty where unknown."""

    history_id: str = ""
    parent: str = ""
    origin_id: str = ""


NO_HISTORY: Final = History()
"""Of a part that was made before there were identities, and the parent of a history that is no
restored one."""


def new_history(parent: History = NO_HISTORY) -> History:
    """A history that begins, or continues ``parent`` after a restore."""
    history_id = new_history_id()
    return History(history_id, parent.history_id, parent.origin_id or history_id)


def new_history_id() -> str:
    """128 random bits as 32 hexadecimal digits."""
    return secrets.token_hex(16)


def is_same_history(one: str, other: str) -> bool:
    """Whether parts with these ids may belong together."""
    return one == other or not one or not other


def refuse_other_history(
    part: str, history_id: str, other_part: str, other_id: str, cure: str = ""
) -> None:
    """Raises ProtectData, with both ids and the cure, unless the parts may belong together."""
    if not is_same_history(history_id, other_id):
        raise ProtectData(
            f"{part} belongs to history {history_id}, {other_part} to {other_id}: they are"
            f" different datastores, or one was restored. {cure}".rstrip()
        )
