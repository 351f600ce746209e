"""Who is master of a cluster: an entry of the state table on the cluster's own nodes, so it replicates with the cells.

A promotion writes it on the new master, under a higher epoch. Whoever looks asks every node that answers and believes the highest epoch, so an old
master that comes back, or is cut off, convinces nobody who can reach one node that has heard of the promotion.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from store.engines.contract import StateTable
from store.errors import DataDamaged

ROLE_KEY: Final = "cluster/role"


class Role(msgspec.Struct, frozen=True):
    """The cluster's ``master`` by node name since leader epoch ``epoch``. ``minions``: the nodes that followed it when it was made so. ``promoted_at``: what it
    had then, as a GTID position: what another node has beyond it was never replicated."""

    cluster: str
    master: str
    epoch: int
    minions: list[str] = []
    semi_sync: bool = False
    promoted_at: str = ""


def read_role(state: StateTable) -> Role | None:
    """The role that a node has heard of; None before ``cluster init``."""
    entry = state.get(ROLE_KEY)
    return decode_role(entry.value if entry else None)


def decode_role(value: bytes | None) -> Role | None:
    """The role in the state entry's value. Raises DataDamaged."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=Role)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"the state entry {ROLE_KEY!r} is no role: {error}") from error


def write_role(state: StateTable, role: Role) -> None:
    """Writes on the master. The caller holds the only right to do so: it promotes, or makes the cluster."""
    state.commit({ROLE_KEY: msgspec.json.encode(role)})


def newest(roles: Iterable[Role | None]) -> Role | None:
    """The role of the highest epoch."""
    return max((role for role in roles if role is not None), key=lambda role: role.epoch, default=None)
